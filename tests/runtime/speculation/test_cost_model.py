"""The cost model against the fluid simulator, and its parts in closed form."""

import pytest

from pipeline.runtime.speculation.cost_model import CostModel, DirectFit, IterationCost, Round
from pipeline.runtime.speculation.live_chains import ExpectedRest
from tests.support.fluid import Fixed, Fluid, Surface, World

TARGET = IterationCost(fixed=0.0136, per_context=5.4e-8, per_token=5.6e-5, overhead=0.0032)
DRAFT = IterationCost(fixed=7.4e-4, per_context=6e-9, per_token=3e-6, overhead=0.0032)


def surface(cost: IterationCost) -> Surface:
    return Surface(fixed=cost.fixed, per_context=cost.per_context, per_token=cost.per_token, overhead=cost.overhead)


def test_an_iteration_is_bound_by_memory_or_by_arithmetic() -> None:
    cost = IterationCost(fixed=2, per_context=0.5, per_token=1, overhead=0.25)
    assert cost.seconds(context=4, tokens=1) == 4.25
    assert cost.seconds(context=4, tokens=9) == 9.25
    assert cost.scaled(2).seconds(context=4, tokens=9) == 18.5


@pytest.mark.parametrize("interference", [0.0, 1.0])
@pytest.mark.parametrize("chains", [1, 8, 32])
def test_gains_are_about_those_of_the_simulator(chains: int, interference: float) -> None:
    world = World(
        target=surface(TARGET),
        draft=surface(DRAFT),
        interference=interference,
        lengths=(1000,) * 4 * chains,
        batch=chains,
    )
    simulated = Fluid(world, Fixed("direct")).run() / Fluid(world, Fixed("speculative")).run()
    model = CostModel(target=TARGET, draft=DRAFT, interference=interference)
    step = Round(tokens=50, drafted=50, verified=110, acceptance=0.8)
    expected = model.speeds(chains, 0, 650, step).speculative / model.direct(chains, 650)
    assert expected == pytest.approx(simulated, rel=0.35)


def test_few_speculating_chains_hardly_slow_the_others_without_interference() -> None:
    model = CostModel(target=TARGET, draft=DRAFT, interference=0.0)
    speeds = model.speeds(1, 31, 1000, Round())
    assert speeds.direct == pytest.approx(model.direct(32, 1000), rel=0.02)
    assert speeds.speculative > 1.5 * speeds.direct


def test_the_fit_finds_what_contexts_cost() -> None:
    fit = DirectFit()
    for context in range(10_000, 100_000, 5_000):
        fit.observe(16, context, TARGET.seconds(context, 16))
    assert fit.seconds(16, 200_000) == pytest.approx(TARGET.seconds(200_000, 16), rel=0.05)


def test_a_rest_is_what_is_left_of_a_length_that_is_longer() -> None:
    rest = ExpectedRest()
    for tokens in (500, 1000, 2000) * 20:
        rest.ended(tokens)
    young, old, oldest = rest.rests([1.0, 1000.0, 8000.0])
    assert 900 < young < 2200
    assert oldest > old > 0
