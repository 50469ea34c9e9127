"""Which words of a launch script reach the program that it starts."""

from __future__ import annotations

import pytest

from planner.dialects.text.shell_commands import launched


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('A="--x 1"\npython train.py $A', "python train.py --x 1"),
        ('A="--x 1"\npython train.py ${A}', "python train.py --x 1"),
        ('A=(--x 1 --y)\npython train.py "${A[@]}"', "python train.py --x 1 --y"),
        ("A=(--x 1)\nA+=(--y)\npython train.py ${A[@]}", "python train.py --x 1 --y"),
        ('A="--x 1"\nA="$A --y"\npython train.py $A', "python train.py --x 1 --y"),
        ('B="--y"\nA="--x $B"\nB=""\npython train.py $A', "python train.py --x --y"),
        ("torchrun --nnodes 2 train.py --x \\\n  --y | tee log", "torchrun --nnodes 2 train.py --x --y"),
        ("echo --x\nmsrun train.py --y && echo --z", "msrun train.py --y"),
        ('if [ 1 ]; then A="--x"; fi\npython train.py $A', "python train.py --x"),
        ("sometool train --x", ""),
    ],
)
def test_words_of_the_commands_that_start_programs(text, words):
    assert " ".join(word.text for word in launched(text).words) == words


@pytest.mark.parametrize(
    ("text", "idle"),
    [
        ('A="--x 1"\npython train.py', [("A", 1)]),
        ('\nA="--x 1"\nB="$A"\npython train.py', [("B", 3)]),  # A is named
        ('A="word"\npython train.py', []),  # no flags
        ('A="--x"\nsometool', []),  # nothing is started
    ],
)
def test_variables_full_of_flags_that_nothing_uses(text, idle):
    assert [(word.text, word.line) for word in launched(text).idle] == idle


def test_words_keep_the_lines_they_stand_on():
    text = 'ARGS="\n    --x 1 \\\n    --y 2 \\\n"\ntorchrun train.py $ARGS \\\n  --z 3\n'
    assert {word.text: word.line for word in launched(text).words if word.text.startswith("--")} == {
        "--x": 2, "--y": 3, "--z": 6,
    }  # fmt: skip
