"""`goqueue-cli`: the command that talks to a running broker. One command group a file, loaded when it is asked for."""
