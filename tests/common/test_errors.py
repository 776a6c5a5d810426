"""What is wrong and the remedy, in one sentence."""

import pickle

from common.errors import Problem


def test_a_problem_reads_as_one_sentence() -> None:
    assert str(Problem("the disk is full", "free some")) == "the disk is full; free some"
    assert str(Problem("the disk is full", "")) == "the disk is full"


def test_a_problem_crosses_to_another_process() -> None:
    """As an exception of a Ray actor or of a pool of processes does."""
    problem = pickle.loads(pickle.dumps(Problem("the disk is full", "free some")))
    assert (problem.message, problem.remedy) == ("the disk is full", "free some")
