import gzip

import numpy as np
import pytest

from planner.errors import SpecError
from planner.observe import log_rows
from planner.observe.log_dialects import MEGATRON
from planner.observe.read import read

LOGS = "h_training_logs"


def run_of(path):
    (run,) = read(path).runs
    return run


def text_run(tmp_path, text, name="train.log"):
    (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return run_of(tmp_path / name)


def test_mindformers_with_the_documentations_own_oddities(data):
    run = run_of(data / LOGS / "mindformers_llama2_13b_8npu.log")
    assert (run.framework, run.generation, run.total_steps) == ("MindFormers", "1.4-1.8", 38)  # 2 epochs of 19
    assert run.step_s.tolist() == pytest.approx([103.328, 1.752, 1.754, 1.756, 1.758])
    assert run.loss.tolist() == [10.649, 10.633, 9.673, 9.287, 8.867]
    assert np.isnan(run.grad_norm[:2]).all()  # "[1 31049]" is no number
    assert run.grad_norm[2:].tolist() == [10.579812, 21.932272, 16.986555]  # without a colon
    assert run.median_step_s() == pytest.approx(1.757)
    assert (run.flop_per_s * run.step_s).round(-12) == pytest.approx(299.2e12, rel=2e-3)  # FLOP of a step: constant


def test_loss_of_inner_stages_is_not_zero_but_unknown(data):
    found = read(data / LOGS / "mindformers_llama31_8b_skipdata.log")
    (run,) = found.runs
    assert np.isnan(run.loss).all()
    assert any("not the last pipeline stage" in note for note in found.notes)
    assert run.skipped.tolist() == [True, True]  # is_skip: [ True] on the line after
    assert run.samples_per_s.tolist() == [0.006, 0.006]
    assert [event.kind for event in run.events] == ["norm above threshold"]


def test_megatron(data):
    run = run_of(data / LOGS / "megatron_format_llama2_tp2_pp4_vpp2_ptd.log")
    assert (run.framework, len(run), run.total_steps, run.global_batch) == ("Megatron", 15, 15, 32)
    assert run.step_s[:2].tolist() == pytest.approx([12.3262, 5.6532])
    assert run.peak_bytes[0] == pytest.approx(17654.7 * 2**20)
    assert len(run.peak_bytes) == 8
    assert run.time_s[1] - run.time_s[0] == 5.0


def test_mindspeed_fsdp2_tokens_and_memory(data):
    run = run_of(data / LOGS / "mindspeed_llm_fsdp2_pretrain.log")
    assert (run.framework, run.seq, run.global_batch) == ("MindSpeed FSDP2", 4096, 8)
    assert run.tokens.tolist() == [32768.0] * 3
    assert run.memory_bytes[-1] == 25.59 * 2**30
    packed = run_of(data / LOGS / "mindspeed_llm_fsdp2_finetune.log")
    assert packed.seq is None  # every step has its own number of tokens
    assert packed.tokens.tolist() == [564.0, 793.0, 756.0]


@pytest.mark.parametrize(
    ("line", "generation", "step_s", "norm"),
    [
        ("Epoch:[  1/  2], step:[    5/   10], loss:[ 2.123/ 2.200], time:510.123 ms, lr:[1e-05], overflow cond: "
         "False, loss_scale: 1.0", "0.3-0.6", 0.510123, None),
        ("{ Epoch:[  1/  2], step:[    5/   10], loss: 2.123, per_step_time: 510ms, lr: 1e-05, overflow cond: False, "
         "loss_scale: 65536.0", "1.0-1.2", 0.51, None),
        ("{ Epoch:[  1/  2], step:[    5/   10], loss: 2.123, per_step_time: 510ms, lr: 1e-05, overflow cond: True, "
         "loss_scale: 1.0, global_norm: [3.25]", "1.3-1.9", 0.51, 3.25),
        ("{ Epoch:[  1/  2], step:[    5/   10], loss: 2.123000, lm_loss: 2.0, load_balancing_loss: 0.1, "
         "per_step_time: 510ms, overflow cond: False, loss_scale: unavailable, global_norm: [3.25], "
         "train_throughput_per_npu: 170.500T",
         "1.9", 0.51, 3.25),
        ("{ step:[    5/   10], loss:   2.123000, per_step_time:    510ms, lr: 1.000000e-05, grad_norm:   3.250000, "
         "throughput:   0.17T }", "1.9 PyNative", 0.51, 3.25),
    ],
)  # fmt: skip
def test_every_generation_of_mindformers(tmp_path, line, generation, step_s, norm):
    prefix = "2025-04-07 15:34:27,308 - mindformers[mindformers/core/callback/callback.py:529] - INFO - "
    run = text_run(tmp_path, f"{prefix}{line}\n")
    assert (run.generation, run.step.tolist(), run.loss.tolist()) == (generation, [5], [2.123])
    assert run.step_s.tolist() == [pytest.approx(step_s)]
    assert np.isnan(run.grad_norm[0]) if norm is None else run.grad_norm[0] == norm
    assert run.skipped.tolist() == ["cond: True" in line]


def test_pynative_throughput_is_a_thousandth(tmp_path):
    line = "{ step:[    5/   10], loss:   2.1, per_step_time:    510ms, grad_norm:   3.2, throughput:   0.17T }\n"
    (tmp_path / "a.log").write_text(line)
    found = read(tmp_path / "a.log")
    assert found.runs[0].flop_per_s.tolist() == [pytest.approx(170e12)]
    assert any("1000x too small; corrected" in note for note in found.notes)


def test_torchtitan_has_colours_commas_and_no_step_time(tmp_path):
    line = (
        "[rank0]:2025-01-01 12:00:{s:02d},500 - root - INFO - \x1b[31mstep: {n:2d}  \x1b[32mloss: {x:8.5f}  "
        "\x1b[38mgrad_norm:  1.2500  \x1b[33mmemory: 40.00GiB(50.00%)  \x1b[34mtps: 1,234  \x1b[36mtflops: 1,034.56  "
        "\x1b[35mmfu: 41.20%\x1b[39m\n"
    )
    text = "".join(line.format(s=4 * n, n=10 * n, x=8.0 - n) for n in range(1, 6))
    (tmp_path / "a.log").write_text(text)
    found = read(tmp_path / "a.log")
    (run,) = found.runs
    assert (run.framework, run.step.tolist()) == ("torchtitan", [10, 20, 30, 40, 50])
    assert (run.tokens_per_s[0], run.flop_per_s[0], run.mfu[0]) == (1234.0, 1034.56e12, pytest.approx(0.412))
    assert run.memory_bytes[0] == 40 * 2**30
    assert run.step_s[1:].tolist() == pytest.approx([0.4] * 4)  # ten steps in four seconds
    assert any("distance of clock stamps" in note for note in found.notes)


def test_nemo_1_and_2(tmp_path):
    two = (
        "Training epoch 0, iteration {n}/249 | lr: 3.922e-06 | global_batch_size: 8 | global_step: {n} | "
        "reduced_train_loss: 1.653 | train_step_timing in s: 2.505 | consumed_samples: 16\n"
    )
    run = text_run(tmp_path, two.format(n=1) + two.format(n=2))
    assert (run.generation, run.step.tolist(), run.global_batch, run.total_steps) == ("2", [1, 2], 8, 249)
    bar = (
        "Epoch 0: :  20%|##  | {n}/50, v_num=0, reduced_train_loss=0.0172, global_step={n}.00, "
        "train_step_timing in s=3.130]"
    )
    run = text_run(tmp_path, "\r".join(bar.format(n=n) for n in (98, 99)) + "\n")  # a progress bar has no line ends
    assert (run.generation, run.step.tolist(), run.step_s.tolist()) == ("1", [98, 99], [3.13, 3.13])


def test_mindspore_callbacks(tmp_path):
    text = "".join(f"epoch: {e} step: {s}, loss is 0.{e}{s}\n" for e in (1, 2) for s in (1, 2, 3))
    lines = text.splitlines(keepends=True)
    time = "Train epoch time: 3.000 ms, per step time: {} ms (data time: 0.250 ms)\n"
    run = text_run(tmp_path, "".join(lines[:3]) + time.format(1.0) + "".join(lines[3:]) + time.format(2.0))
    assert run.loss.tolist() == [0.11, 0.12, 0.13, 0.21, 0.22, 0.23]
    assert run.step_s.tolist() == pytest.approx([1e-3] * 3 + [2e-3] * 3)
    assert run.data_s.tolist() == pytest.approx([0.25e-3] * 6)
    alone = text_run(tmp_path, "Train per step time: 123.456 ms mfu:41.20% hfu:46.80%\n" * 3)
    assert (alone.step_s.tolist(), alone.mfu[0]) == (pytest.approx([0.123456] * 3), pytest.approx(0.412))


def megatron(step, stamp="10:00:00", norm="1.000"):
    return (
        f" [2026-01-05 {stamp}] iteration {step:8d}/     100 | consumed samples: {step * 8:12d} | elapsed time per "
        f"iteration (ms): 2600.0 | learning rate: 1.0E-06 | global batch size:     8 | lm loss: 1.7E+00 | loss scale: "
        f"1.0 | grad norm: {norm} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def test_bad_lines(tmp_path):
    text = megatron(1)[40:] + megatron(2, "10:00:06") + megatron(3, "10:00:03") + megatron(2, "10:00:09", "nan")
    (tmp_path / "a.log").write_text((text + megatron(3)[:180]).replace("\n", "\r\n"))
    found = read(tmp_path / "a.log")
    (run,) = found.runs
    assert run.step.tolist()[-3:] == [2, 3, 2]
    assert np.isnan(run.grad_norm[-1])
    words = " ".join(found.notes)
    assert "the clock steps back 1 times" in words
    assert "step numbers fall back 1 times" in words
    assert "1 step line(s) that were cut short" in words


def test_steady_rows_leave_out_three_steps_of_every_start(tmp_path):
    run = text_run(tmp_path, "".join(megatron(n) for n in [*range(1, 7), *range(4, 9)]))
    assert np.flatnonzero(run.steady()).tolist() == [3, 4, 5, 9, 10]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "gb18030"])
def test_encodings(tmp_path, encoding):
    text = "训练日志：第一台服务器\n" + "".join(megatron(n) for n in range(1, 4))
    run = text_run(tmp_path, text.encode(encoding))
    assert run.step.tolist() == [1, 2, 3]


def test_gzip_cut_short(tmp_path):
    rng = np.random.default_rng(0)
    text = "".join(megatron(n, norm=f"{rng.random():.12f}") for n in range(1, 2000)).encode()
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(text)[:-2000])
    found = read(tmp_path / "a.log.gz")
    assert len(found.runs[0]) > 100
    assert any("ends in the middle" in note for note in found.notes)


def test_rows_beyond_a_block_and_beyond_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(log_rows, "BLOCK_ROWS", 16)
    monkeypatch.setattr(log_rows, "KEPT_STEPS", 40)
    follow = "- INFO -    0.0% |      | 0.{n:05d} samples/s/p  1 day, 5:50:52 }}\n"
    line = "- INFO - {{ Epoch:[  1/  1], step:[{n:5d}/  200], loss: 1.5, per_step_time: {n}ms, lr: 0.0, more: False\n"
    text = "".join((line + follow).format(n=n) for n in range(1, 101))
    (tmp_path / "worker_5.log").write_text(text)
    found = read(tmp_path / "worker_5.log")
    (run,) = found.runs
    assert (run.rank, len(run) + run.left_out) == (5, 100)
    assert 40 <= len(run) <= 40 + 16
    assert run.step.tolist() == list(range(101 - len(run), 101))
    assert run.step_s.tolist() == pytest.approx([n / 1000 for n in run.step])
    assert run.samples_per_s.tolist() == pytest.approx([n / 1e5 for n in run.step])


def test_quick_and_slow_reading_agree(tmp_path, data):
    """Learned shapes may not change a number: every line read alone gives what the file gives."""
    for log in sorted((data / LOGS).glob("*.log")):
        whole = run_of(log)
        steps = [line for line in log.read_text().splitlines() if "iteration  " in line or "step:[" in line]
        for index, line in enumerate(steps):
            alone = text_run(tmp_path, line + "\n")
            for name in ("step", "step_s", "grad_norm", "learning_rate", "flop_per_s", "memory_bytes"):
                np.testing.assert_array_equal(getattr(alone, name)[0], getattr(whole, name)[index])


def test_a_log_that_is_still_written():
    rows = log_rows.Rows(MEGATRON)
    rows.read((megatron(1) + megatron(2)).encode())
    assert rows.take()["step"].tolist() == [1, 2]
    assert not rows.take()
    rows.read(megatron(3).encode())
    assert rows.take()["step"].tolist() == [3]


def test_sparse_logs_find_their_lines_by_words(tmp_path):
    noise = "[INFO] 2025-04-07 15:00:00 node3 hccl link check passed for device 4\n" * 50
    text = "".join(noise + megatron(n) for n in range(1, 6)) + noise
    text += "  successfully saved checkpoint at iteration       5 to ckpt\n"
    run = text_run(tmp_path, text)
    assert run.step.tolist() == [1, 2, 3, 4, 5]
    assert [(e.kind, e.step) for e in run.events] == [("checkpoint", 5)]


def test_a_word_of_another_program_does_not_decide(tmp_path):
    run = text_run(tmp_path, "arguments: eval_step:[ 1, 2], wait for tps: 3\n" + megatron(1) + megatron(2))
    assert (run.framework, run.step.tolist()) == ("Megatron", [1, 2])


def test_a_log_without_steps(tmp_path):
    (tmp_path / "a.log").write_text("starting\nfailed\n")
    with pytest.raises(SpecError, match=r"unknown format \(first line 'starting'\)"):
        read(tmp_path / "a.log")
    (tmp_path / "a.log").write_text("TrainingStateMonitor Epoch:[  1/  2], step:[    1/   10] local_norm: 5\n")
    with pytest.raises(SpecError, match="MindFormers wrote it, but no step's line is whole"):
        read(tmp_path / "a.log")
