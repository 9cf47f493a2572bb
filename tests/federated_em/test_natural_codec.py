"""The codec in natural units: what is decoded, that its bytes are those that are counted, and how few they are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError, WorkerFailed
from fedcore.methods.federated_em.natural_codec import SENT_ABOVE, UNARY, Natural, parts_of
from fedcore.methods.federated_em.range_coder import UNIT, Context, RangeReader, RangeWriter, context_units, whole_bytes
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.natural_units import NaturalUnits, units_at
from fedcore.randomness import client_uniforms
from tests.mixture_models.cases import case
from tests.mixture_models.natural import natural

COVARIANCES = ("known", "spherical", "diag", "tied", "full")
OTHERS = ("regression-intercept", "poisson", "multinomial", "bernoulli")
UNITS = {name: units_at(case(name).model, case(name).theta, np.zeros(0)) for name in (*COVARIANCES, *OTHERS)}


def draws(codec: Natural, clients: int, round: int = 0) -> np.ndarray:
    return client_uniforms(5, "test/natural", round, 0, clients, codec.draws)


# --- range coder ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=200), st.integers(0, 2**70))
def test_what_is_written_is_read_in_as_many_bytes_as_counted(answers, plain):
    """Three contexts, and plain bits behind."""
    width = plain.bit_length()
    writer, contexts = RangeWriter(), [Context() for _ in range(3)]
    for of, answer in answers:
        contexts[of].write(writer, answer)
    writer.bits(plain, width)
    counts = np.array([[sum(a == (of, v) for a in answers) for v in range(2)] for of in range(3)])
    units = int(context_units(counts[:, 0], counts[:, 1]).sum()) + width * int(1 / UNIT)
    message = writer.finish(int(whole_bytes(units)))
    assert len(message) == whole_bytes(units) <= units * UNIT / 8 + 1.01
    reader, contexts = RangeReader(message), [Context() for _ in range(3)]
    assert [(of, contexts[of].read(reader)) for of, _ in answers] == answers
    assert reader.bits(width) == plain


def test_costs_worked_by_hand():
    """Two noes and a yes: 1/2, 3/4, 1/6 of the interval."""
    units = context_units(np.array([2, 0]), np.array([1, 0]))
    np.testing.assert_allclose(units * UNIT, [4.0, 0.0], atol=2 * UNIT)
    assert whole_bytes(units).tolist() == [1, 0]


def test_a_message_too_short_is_refused():
    writer = RangeWriter()
    writer.bits(12345, 20)
    with pytest.raises(ValueError, match="does not fit"):
        writer.finish(2)


def test_many_certain_symbols_and_one_surprise():
    writer, context = RangeWriter(), Context()
    symbols = [0] * 20_000 + [1] + [0] * 20_000
    for symbol in symbols:
        context.write(writer, symbol)
    length = int(whole_bytes(context_units(np.array(40_000), np.array(1))))
    assert length <= 4
    reader, context = RangeReader(writer.finish(length)), Context()
    assert [context.read(reader) for _ in symbols] == symbols


# --- messages -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from((*COVARIANCES, *OTHERS)),
    st.integers(0, 2**32 - 1),
    st.floats(-6, 11),
    st.booleans(),
    st.floats(0, 1),
)
def test_server_decodes_what_the_client_remembers_from_the_bytes_that_are_counted(
    covariance, seed, magnitude, everything, kept
):
    """Levels from 0 to far beyond the unary code, with parts that are empty."""
    rng, units = np.random.default_rng(seed), UNITS[covariance]
    codec = Natural(units, 0.5, everything)
    z = rng.standard_normal((3, codec.q)) * 10.0 ** rng.uniform(-6, magnitude, (3, 1))
    for part in codec.parts:
        z[:, part.start : part.start + part.length] *= rng.random((3, 1)) < kept
    x, u = units.backward(z), draws(codec, 3, seed % 1000)
    decoded, bits = codec.transmit(x, u)
    for client in range(3):
        message, length = codec.to_bits(x[client], u[client])
        assert length == bits[client] == 8 * len(message)
        assert np.array_equal(codec.from_bits(message, u[client]), decoded[client])


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_nothing_is_little(covariance):
    """All zeros: only bits that say that no part is sent."""
    codec = Natural(UNITS[covariance], 1.0)
    decoded, bits = codec.transmit(np.zeros((2, codec.q)), draws(codec, 2))
    assert not decoded.any() and (bits <= 16).all()
    nobody, none = codec.transmit(np.zeros((0, codec.q)), draws(codec, 0))
    assert nobody.shape == (0, codec.q) and none.shape == (0,)


def test_errors_are_uniform_whatever_is_sent():
    """Unbiased, of variance D^2 / 12, uncorrelated with the message: also for numbers far below the step."""
    units, d, clients = UNITS["full"], 0.3, 4000
    codec = Natural(units, d, everything=True)
    z = np.tile(np.linspace(-0.4, 0.4, codec.q), (clients, 1))
    levels, sent = codec.quantise(units.backward(z), draws(codec, clients))
    error = d * (levels - (draws(codec, clients) - 0.5)) - z
    assert np.abs(error).max() <= d / 2 * (1 + 1e-12) and sent.all()
    assert np.abs(error.mean(axis=0)).max() < 5 * d / np.sqrt(12 * clients)
    # the variance of a squared uniform is D^4 / 180
    assert np.abs((error**2).mean(axis=0) - d * d / 12).max() < 5 * d * d / np.sqrt(180 * clients)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_loss_of_likelihood_is_what_the_step_says(covariance):
    """n messages rounded to D lose (q - 1) D^2 / (24 n) of the expected log-likelihood of the complete data: a total of
    the weights other than 1 costs nothing. One covariance for all also gets the errors of the means."""
    units, d, clients, times = UNITS[covariance], 0.05, 5, 300
    model, theta, q = units.model, units.theta, units.model.q
    s = model.statistic_of(theta)
    phi, psi = natural(model, theta)
    x = np.random.default_rng(1).standard_normal((clients * times, q))
    decoded, _ = Natural(units, d, everything=True).transmit(x, draws(Natural(units, d), clients * times))
    errors = (decoded - x).reshape(times, clients, q).mean(axis=1)
    losses = []
    for error in errors:
        after, normaliser = natural(model, model.maximise(s + error))
        losses.append(normaliser - psi - float(s @ (after - phi)))
    predicted = (q - 1) * d * d / (24 * clients)
    if covariance == "tied":
        counts, first, _ = units._split(errors)
        half = first - 0.5 * units._mu * counts[..., None]
        cross = np.einsum("gi,cgj->cij", units._mu, half)
        white = units._inverse @ (cross + np.swapaxes(cross, 1, 2)) @ units._inverse.T
        predicted += float((white**2).sum(axis=(1, 2)).mean()) / 4
    assert np.mean(losses) == pytest.approx(predicted, rel=0.06)


@pytest.mark.parametrize("name", OTHERS)
def test_the_loss_of_other_mixtures_is_what_the_step_says(name):
    """Without a penalty. Numbers that cost nothing: one of all weights, the inputs of a regression, and the number of
    tokens of a component of a multinomial."""
    made, d, clients, times = case(name), 0.03, 5, 400
    model = replace(
        made.model, **{field: 0.0 for field in ("a", "b", "ridge", "nu", "lam") if hasattr(made.model, field)}
    )
    units, q, g = units_at(model, made.theta, np.zeros(0)), model.q, model.components
    free = 1 + g * {"regression-intercept": 6, "multinomial": 1}.get(name, 0)
    s = model.statistic_of(made.theta)
    phi, psi = natural(model, made.theta)
    x = np.random.default_rng(1).standard_normal((clients * times, q))
    decoded, _ = Natural(units, d, everything=True).transmit(x, draws(Natural(units, d), clients * times))
    losses = []
    for error in (decoded - x).reshape(times, clients, q).mean(axis=1):
        after, normaliser = natural(model, model.maximise(s + error))
        losses.append(normaliser - psi - float(s @ (after - phi)))
    assert np.mean(losses) == pytest.approx((q - free) * d * d / (24 * clients), rel=0.06)


def test_parts_below_their_noise_stay_at_home():
    units = UNITS["full"]
    codec = Natural(units, 0.2)
    z = np.zeros((2, codec.q))
    for part in codec.parts:
        z[:, part.start] = np.sqrt(SENT_ABOVE * part.length * 0.2**2 / 12) * np.array([0.999, 1.001])
    _, sent = codec.quantise(units.backward(z), draws(codec, 2))
    assert not sent[0].any() and sent[1].all()
    assert not codec.transmit(units.backward(z), draws(codec, 2))[0][0].any()


def test_bytes_are_near_the_entropy():
    """Scatters with levels of known distributions: at most 15 bits for each above the entropy (two adaptive contexts of
    55 and some 20 answers), and a byte."""
    model = GaussianMixture(4, 10, "full")
    covariances = np.tile(np.eye(10), (4, 1, 1))
    units = NaturalUnits(model, {"weights": np.full(4, 0.25), "means": np.zeros((4, 10)), "covariances": covariances})
    codec, rng, entropy = Natural(units, 1.0, everything=True), np.random.default_rng(3), 0.0
    levels = np.zeros((400, codec.q), np.int64)
    for at, part in enumerate(codec.parts[-4:]):
        zero, stop = (0.9, 0.8) if at % 2 else (0.5, 0.6)
        size = rng.geometric(stop, (400, part.length)) * (rng.random((400, part.length)) > zero)
        levels[:, part.start : part.start + part.length] = size * rng.choice([-1, 1], size.shape)
        tail = -np.log2(stop) - (1 / stop - 1) * np.log2(1 - stop)
        entropy += part.length * (-zero * np.log2(zero) - (1 - zero) * np.log2((1 - zero) / 2) + (1 - zero) * tail)
    bits = codec.bits(levels, np.ones((400, len(codec.parts)), bool))
    assert entropy < bits.mean() < entropy + 4 * 15 + 8


def test_parts_and_their_contexts_worked_by_hand():
    """4 weights, 4 means of 10 that share their contexts, 4 scatters of 55 that do not."""
    theta = {"weights": np.full(4, 0.25), "means": np.zeros((4, 10)), "covariances": np.tile(np.eye(10), (4, 1, 1))}
    parts = parts_of(NaturalUnits(GaussianMixture(4, 10, "full"), theta))
    assert [part.start for part in parts] == [0, *range(4, 44, 10), *range(44, 264, 55)]
    assert [part.kind for part in parts] == [0] + 4 * [1] + 4 * [2]
    assert [part.contexts for part in parts] == [0, 1, 1, 1, 1, 2, 3, 4, 5]


def test_sizes_at_the_end_of_the_unary_code():
    units = UNITS["diag"]
    codec = Natural(units, 1.0, everything=True)
    u = np.full((1, codec.q), 0.5)
    z = np.resize([0.0, UNARY - 1, -UNARY, UNARY + 1, -(UNARY + 2), 2.0**30], (1, codec.q))
    x = units.backward(z)
    decoded, bits = codec.transmit(x, u)
    message, length = codec.to_bits(x[0], u[0])
    assert length == bits[0] and np.array_equal(codec.from_bits(message, u[0]), decoded[0])
    np.testing.assert_allclose(units.forward(decoded), z, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("covariance", ("full", "diag"))
def test_a_client_is_a_function_of_its_own_message(covariance):
    codec, clients = Natural(UNITS[covariance], 0.1), 9
    x, u = np.random.default_rng(0).standard_normal((clients, codec.q)), draws(codec, clients)
    decoded, bits = codec.transmit(x, u)
    parts = [codec.transmit(x[part], u[part]) for part in (slice(0, 1), slice(1, 3), slice(3, 9))]
    assert np.array_equal(decoded, np.concatenate([part[0] for part in parts]))
    assert np.array_equal(bits, np.concatenate([part[1] for part in parts]))
    x[7, 0] = np.nan
    with pytest.raises(WorkerFailed, match="client 7"):
        codec.transmit(x, u)


@pytest.mark.parametrize("name", UNITS)
def test_whether_a_part_is_sent_does_not_depend_on_who_else_is_there(name):
    """Also of the last bit: a lone row lies in memory both ways."""
    codec = Natural(UNITS[name], 0.1)
    z = codec.units.forward(np.random.default_rng(0).standard_normal((40, codec.q)))
    alone = [codec._squares(z[client : client + 1])[0] for client in range(len(z))]
    assert np.array_equal(codec._squares(z), alone)


def test_what_cannot_be_sent_is_named():
    codec = Natural(UNITS["full"], 1e-3)
    for bad in (np.nan, np.inf, 1e12, 1e200):
        x = np.zeros((2, codec.q))
        x[1, -1] = bad
        with pytest.raises(WorkerFailed, match="client 7"):
            codec.transmit(x, draws(codec, 2), np.array([6, 7]))
    with pytest.raises(ConfigError, match="step"):
        Natural(UNITS["full"], 0.0)
