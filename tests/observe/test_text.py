import tracemalloc

import pytest

from planner.observe import text
from planner.observe.text import File


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends(tmp_path, end, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", 7)  # chunks end in the middle of lines and of line ends
    (tmp_path / "a").write_bytes(end.join([b"one", b"two", b"", b"three"]) + end)
    assert [line for line in File(tmp_path / "a").lines() if line] == [b"one", b"two", b"three"]


def test_a_line_without_end_is_cut_and_memory_stays_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", 2**16)
    monkeypatch.setattr(text, "LINE_BYTES", 2**16)
    with (tmp_path / "a").open("wb") as stream:
        for _ in range(200):
            stream.write(b"x" * 2**16)
    tracemalloc.start()
    lengths = [len(block) for block in File(tmp_path / "a").blocks()]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lengths == [2**16]
    assert peak < 10 * 2**16  # of 13 MB
