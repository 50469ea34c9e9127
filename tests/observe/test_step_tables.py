import pytest

from planner.errors import SpecError
from planner.observe.read import read

TORCH_NPU = "a_torchnpu_pp2_dp2/rank_{}_ascend_pt/ASCEND_PROFILER_OUTPUT/step_trace_time.csv"
#: us: computing, not overlapped, free, stage; sample a of the data's README.
KNOWN = {0: (231290.1, 420174.3, 158558.0, 810022), 2: (400448.3, 277649.7, 131705.3, 809803)}
#: us: computing, not overlapped, overlapped, free, preparing; sample c.
LEVELS = {
    (0, 0): (8827, 81516, 4001, 25908, 19358), (0, 1): (8813, 64616, 3990, 27173, 18920),
    (1, 0): (8874, 101963, 4029, 25744, 17903), (1, 1): (8878, 96359, 4016, 26675, 20433),
    (2, 0): (8868, 95962, 4011, 25033, 17484), (2, 1): (8902, 93412, 4044, 26441, 18326),
}  # fmt: skip
HEADER = "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,Preparing\n"


@pytest.mark.parametrize("rank", [0, 2])
def test_torch_npu(data, rank):
    (step,) = read(data / TORCH_NPU.format(rank)).steps
    told = [1e6 * value for value in (step.compute_s, step.exposed_s, step.free_s, step.stage_s)]
    assert told == pytest.approx(KNOWN[rank], abs=0.6)
    assert (step.bubble_s, step.step, step.device) == (0.0, 13, {0: 0, 2: 4}[rank])  # the card is not the rank


@pytest.mark.parametrize(("level", "rank"), LEVELS)
def test_levels_of_one_job(data, level, rank):
    (step,) = [s for s in read(data / f"c_small_ddp_2ranks/level{level}").steps if s.rank == rank]
    told = [step.compute_s, step.exposed_s, step.overlapped_s, step.free_s, step.preparing_s]
    assert [1e6 * value for value in told] == pytest.approx(LEVELS[level, rank], abs=1.0)


def test_the_invariant_holds_on_every_real_row(data):
    tables = sorted(data.rglob("step_trace_time.csv"))
    shares = [step.invariant_frac for table in tables for step in read(table).steps]
    assert len(shares) == 10
    assert max(shares) < 1e-5  # 1 us per 100 ms


def test_a_row_whose_parts_do_not_add_up_is_marked(tmp_path):
    (tmp_path / "step_trace_time.csv").write_text(HEADER + "7,100,50,0,50,30,300,0,1\n8,100,50,0,50,30,180,0,1\n")
    found = read(tmp_path / "step_trace_time.csv")
    assert [step.mark for step in found.steps] == ["parts do not add up", ""]
    assert "row 2: computing + communication alone + free is 0.2 ms, stage + bubble 0.3 ms" in found.notes[0]


def test_first_and_last_profiled_steps_are_marked_when_others_are_there(tmp_path):
    rows = "".join(f"{step},100,50,0,50,30\t,180,0,1\n" for step in range(5, 9))
    (tmp_path / "s.csv").write_text(HEADER + rows)
    assert [s.mark for s in read(tmp_path / "s.csv").steps] == ["first profiled step", "", "", "last profiled step"]


def test_rows_of_stages_are_maxima_and_kept_apart(tmp_path):
    (tmp_path / "cluster_step_trace_time.csv").write_text(
        "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble\n"
        '2,rank,0,100,50,0,50,30,180,0\n2,rank,1,60,90,0,90,30,180,0\n2,stage,"(0, 1)",100,90,0,90,30,180,0\n'
    )
    found = read(tmp_path / "cluster_step_trace_time.csv")
    assert found.kind == "cluster summary"
    assert [(s.rank, s.stage, s.ranks, s.mark) for s in found.steps] == [
        (0, 0, (), ""), (1, 0, (), ""), (None, None, (0, 1), "maximum over ranks"),
    ]  # fmt: skip
    assert found.steps[2].invariant_frac is None
    assert found.steps_of(1)[0].compute_s == pytest.approx(60e-6)


def test_old_pipeline_tables(data):
    found = read(data / "e_mindspore_old_pp2_4ranks")
    steps = {rank: found.steps_of(rank)[1:] for rank in (0, 2)}  # the first step is the start-up
    assert found.steps_of(2)[0].mark == "first profiled step"
    assert found.steps_of(2)[0].receive_s == pytest.approx(1.989431)
    assert all(0.014 < s.compute_s < 0.0151 and 0.163 < s.exposed_s < 0.166 for s in steps[0])
    assert all(0.122 < s.compute_s < 0.1243 and 0.1739 < s.stage_s < 0.1764 for s in steps[2])
    assert (steps[0][0].stage, steps[2][0].stage) == (0, 1)
    assert all(s.invariant_frac < 1e-3 for s in found.steps)  # computation + communication = stage + receive alone


def test_step_trace_raw_is_in_ticks_of_10_ns(data):
    found = read(data / "f_mindspore_old_files/step_trace_raw_0_detail_time.csv")
    assert found.steps[0].stage_s == pytest.approx(4003047e-8)
    assert found.steps[1].free_s == pytest.approx(9037809e-8)
    # three spans of each of two streams inside step 1, their union: no double counting where streams overlap
    assert 0.0 < found.steps[0].exposed_s < (17596 + 298102 + 200943 + 26300 + 3e5 + 2e5) * 1e-8
    assert found.steps[0].receive_s == 0.0


def test_msprof_iterations(tmp_path):
    (tmp_path / "step_trace_20230101.csv").write_text(
        "Device_id,Iteration ID,FP Start(us),BP End(us),Iteration End(us),Iteration Time(us),FP to BP Time(us),"
        "Iteration Refresh(us),Data Aug Bound(us),Model ID\n0,1,10,80,100,100,70,20,5,1\n"
    )
    (step,) = read(tmp_path / "step_trace_20230101.csv").steps
    assert (step.compute_s, step.free_s, step.preparing_s) == pytest.approx((70e-6, 30e-6, 5e-6))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER, "without a row"),
        ("Step,Computing\n1,2\n", "nearest is step_trace_time.csv, of which it lacks free"),
        ("Step,Computing,Free\n1,2,3\n", r"lacks column communication\(not_overlapped\)"),
        (HEADER + "1,x,1,1,1,1,1,1,1\n", "Computing is not a number"),
    ],
)
def test_bad_tables(tmp_path, text, message):
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(SpecError, match=message):
        read(tmp_path / "s.csv")


def test_a_table_cut_short_says_so(tmp_path):
    (tmp_path / "s.csv").write_text(HEADER + "7,100,50,0,50,30,180,0,1\n8,100,50,0,5")
    found = read(tmp_path / "s.csv")
    assert len(found.steps) == 1
    assert "the last row has 5 of 9 columns, the file is cut short" in found.notes[0]
