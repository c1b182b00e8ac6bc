"""What an operator may set: defaults, a YAML file, the environment and flags, folded into one `Settings`.

`keys.py` is the one table of keys; `loading.load` the one way in. No room below this one reads it: the composition
root hands values down. Nothing is ignored: a key that is unknown, or that asks for what is not built, is a problem,
and every problem is told at once, before anything binds.
"""
