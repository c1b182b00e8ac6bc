"""What every test can rely on, however the suite was started."""

import os
import signal

# Tests send these to programs they start. Started under nohup, or in the background of a script, the suite would have
# them ignored, and so would those programs.
for each in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(each) is signal.SIG_IGN:
        signal.signal(each, signal.default_int_handler if each is signal.SIGINT else signal.SIG_DFL)

# Tests start programs from processes that also speak gRPC. Its own care for forks would begin its threads again in a
# child that is about to become another program, and end it when their files are closed. Read when it is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
