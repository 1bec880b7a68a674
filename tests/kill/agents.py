"""A process that starts agents, one after the other, each to be killed at a step of its own.

`python -m kill.agents CONFIG LOG` reads from its input where the next agent is to die, forks (an import of everything costs
more than most lives last), and says `born PID` and, when the agent is dead, `died STATUS`; the agent itself says where it
listens. Its command is `scorewatch run`.
"""

import json
import os
import sys
from pathlib import Path

import monitor.run  # noqa: F401 - imported once, here, for all agents
from kill import points
from kill.stores import KNOWN, small
from monitor import cli

if __name__ == "__main__":
    small(known=KNOWN)
    for line in sys.stdin:
        if child := os.fork():
            status = os.waitpid(child, 0)[1]
            print(f"\ndied {status}", flush=True)  # the agent may have died within its line
            continue
        print("born", os.getpid(), flush=True)
        points.arm(Path(sys.argv[2]), json.loads(line))
        code = cli.main(["run", "--config", sys.argv[1]])
        sys.stderr.flush()
        os._exit(code)
