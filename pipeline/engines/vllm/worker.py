"""The worker process of engine `vllm`, started as `python -m pipeline.engines.vllm.worker FD`; `AsyncLLM` starts further processes.

vLLM takes long to import: `pipeline.engines.vllm.server`, which serves the requests, is imported once signals are left to the main process.
"""

import asyncio
import gc
import os

from pipeline.engines.process.wire import Loading
from pipeline.engines.process.worker import ParentConnection, carry_out
from pipeline.system.worker_process import end_with_parent


def main() -> None:
    """The main function of the worker process."""
    connection = ParentConnection()
    # In vLLM's processes the socket would outlive this one, and they would, too.
    os.register_at_fork(after_in_child=connection.socket.close)
    os.register_at_fork(after_in_child=end_with_parent)
    setup = connection.setup()
    connection.send(Loading("importing vLLM"))
    gc.disable()  # until what stays is loaded
    from pipeline.engines.vllm.server import work

    asyncio.run(work(connection, setup))


if __name__ == "__mp_main__":  # one of the processes that vLLM spawns; they load this module first
    end_with_parent()
if __name__ == "__main__":
    carry_out(main)
