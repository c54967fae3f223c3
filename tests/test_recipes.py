"""Each recipe three times: without us, first run, second run. What issue 2 promises is asked of every one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.runner import RECIPES, Recipe, Run, run_recipe

pytestmark = pytest.mark.slow

# Steps of the script are counted from 0; the step in which a first run becomes active must come before this one.
LATEST_ACTIVATION = 6
LEAST_HIT_RATE = 0.99
# Gloo's threads allocate and free when they are scheduled: on busy cores some slots are still in use when their next
# request comes, and that request is served elsewhere. Measured: 0.96 to 1.00 on two shared cores.
LEAST_HIT_RATE_WITH_THREADS = 0.9


class Runs:
    """The three runs of one recipe, made once."""

    def __init__(self, recipe: Recipe, folder: Path):
        self.name = recipe.name
        self.without = run_recipe(recipe, folder / "without", is_disabled=True)
        self.first = run_recipe(recipe, folder / "with")
        self.second = run_recipe(recipe, folder / "with")


@pytest.fixture(scope="module", params=RECIPES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(RECIPES[request.param], tmp_path_factory.mktemp(request.param))


@pytest.fixture
def planned(runs: Runs, request: pytest.FixtureRequest) -> Runs:
    """The runs, for what depends on the plan. Known gap: ZeRO-3 over Gloo on busy cores."""
    if runs.name == "zero3":
        # Its gathers run on Gloo's threads, which change the order of requests from step to step; where two orders
        # were recorded, the sizes at those positions are taken for variables, and the plan may be refused.
        request.applymarker(pytest.mark.xfail(reason="threads reorder the requests of ZeRO-3", strict=False))
    return runs


def test_losses_are_those_of_a_run_without_us_bit_for_bit(runs: Runs) -> None:
    assert all(runs.without.losses)
    assert runs.first.losses == runs.without.losses
    assert runs.second.losses == runs.without.losses


def test_switched_off_leaves_no_figures(runs: Runs) -> None:
    assert runs.without.figures == []
    assert "[stalloc]" not in runs.without.output


def test_first_run_becomes_active_in_its_first_steps_on_every_rank(planned: Runs) -> None:
    assert len(planned.first.figures) == len(planned.first.losses)
    for figures in planned.first.figures:
        assert figures["state"] == "active", planned.first.output
        assert not figures["from_cache"]
        assert figures["activated_at_step"] < LATEST_ACTIVATION, planned.first.output


def test_second_run_starts_with_the_plan_of_the_first(planned: Runs) -> None:
    assert len(planned.second.figures) == len(planned.second.losses)
    for first, second in zip(planned.first.figures, planned.second.figures):
        assert second["state"] == "active", planned.second.output
        assert second["from_cache"]
        assert second["activated_at_step"] == 0
        assert second["key"] == first["key"]
    assert "recording" not in planned.second.output


@pytest.mark.parametrize("which", ["first", "second"])
def test_planned_events_are_served_from_their_slots(planned: Runs, which: str) -> None:
    run: Run = getattr(planned, which)
    least = LEAST_HIT_RATE if len(run.losses) == 1 else LEAST_HIT_RATE_WITH_THREADS
    for figures in run.figures:
        assert figures["hit_rate_planned"] >= least, figures
