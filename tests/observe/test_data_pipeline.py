import pytest

from planner.observe.read import read


def test_share_of_waiting_against_the_clock(data):
    """A map of 4 ms a sample, batches of 8, a consumer of 5 ms: 0.85 by the clock."""
    (pipeline,) = read(data / "g_minddata_cpu29").pipelines
    assert (pipeline.waited_s, pipeline.elapsed_s) == (pytest.approx(1.686), pytest.approx(2.005))
    assert pipeline.waited_frac == pytest.approx(0.84, abs=0.005)
    assert (round(pipeline.queue_mean, 2), pipeline.queue_length, pipeline.batches) == (0.03, 16, 59)
    assert [(o.op, o.queue_mean, o.children) for o in pipeline.operators] == [
        ("BatchOp", 0.0, (1,)), ("MapOp", 0.0, (2,)), ("GeneratorOp", 16.0, ()),
    ]  # fmt: skip
    assert pipeline.sink is False


def test_old_files_are_joined_by_rank(data):
    found = read(data / "f_mindspore_old_files")
    pipeline = next(p for p in found.pipelines if p.rank == 0)
    assert (pipeline.sink, pipeline.batches, pipeline.waited_frac) == (True, 0, None)
    assert any("one batch only" in word for word in found.missing)
    by_id = {o.id: o for o in pipeline.operators}
    assert len(by_id) == len(pipeline.operators) == 5


def test_pipeline_raw_table(data):
    (pipeline,) = read(data / "f_mindspore_old_files/minddata/minddata_pipeline_raw_1.csv").pipelines
    shuffle = next(o for o in pipeline.operators if o.id == 4)
    assert (shuffle.op, shuffle.queue_mean, shuffle.queue_length, shuffle.children) == ("Shuffle", 20.0, 64, (1,))


def test_a_clock_that_steps_back_gives_no_share(tmp_path):
    lines = ["0 0 1 5 1000", "1 16 1 0 1000", "0 0 2 5 1010", "1 16 2 3 1010", "0 0 3 5 400", "1 16 3 1 400"]
    (tmp_path / "dataset_iterator_profiling_0.txt").write_text("\r\n".join(lines))
    found = read(tmp_path / "dataset_iterator_profiling_0.txt")
    assert "the clock steps back 1 times" in found.notes[0]
    assert found.pipelines[0].waited_frac is None
    assert found.pipelines[0].queue_mean == 2.0
