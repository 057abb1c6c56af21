"""The probe of a container: yes, or one line that says why not."""

import socket
import subprocess
import sys
import threading

import pytest
from daemon.single import head_of
from support.streams import model, write_tree

from patchswarm.daemon.local import probe


def run(home, *arguments):
    return subprocess.run(
        [sys.executable, "-P", "-m", "patchswarm.daemon.local.probe", *arguments],
        env={"PATCHSWARM_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_daemon_the_answer_is_no(root):
    done = run(root, "healthz")
    assert done.returncode == 1
    assert done.stderr.strip() == f"{root}/patchswarm.sock: [Errno 2] No such file or directory"


@pytest.mark.parametrize("arguments", [[], ["lively"], ["healthz", "readyz"]])
def test_another_question_is_refused(root, arguments):
    done = run(root, *arguments)
    assert done.returncode == 2
    assert "healthz|readyz" in done.stderr


async def test_a_daemon_that_serves_is_healthy_and_ready(root):
    import asyncio

    async with head_of(root) as head:
        await head.publish("qwen", write_tree(root / "trainer", model(1)))
        for question in probe.QUESTIONS:
            done = await asyncio.to_thread(run, head.home.root, question)
            assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def answering(root):
    """A socket that gives these bytes to whoever asks."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(root / "patchswarm.sock"))
    listening.listen()
    threads = []

    def give(answer):
        def serve():
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()

    yield give
    for thread in threads:
        thread.join()
    listening.close()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b'HTTP/1.1 503 x\r\ncontent-length: 27\r\n\r\n{"detail": "3 versions behind"}'[:-4], "answers 503"),
        (b'HTTP/1.1 503 x\r\ncontent-length: 31\r\n\r\n{"detail": "3 versions behind"}', "3 versions behind"),
        (b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n", "answers 500"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "SSH-2.0"),
    ],
)
def test_whatever_it_says_instead_of_yes_is_one_line(root, answering, answer, says):
    answering(answer)
    problem = probe.ask(root / "patchswarm.sock", "readyz")
    assert says in problem
    assert "\n" not in problem.strip()
