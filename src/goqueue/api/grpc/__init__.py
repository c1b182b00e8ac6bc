"""The gRPC door: every operation as a call, and two streams that are made of them.

Nobody imports this room unless the door is to be opened: gRPC takes memory and time to load.
"""
