//! Worked examples of the samplers, with input and expected probabilities.

use super::*;
use crate::finite::NotFinite;

/// Creates candidates with logits `ln p`, in the order of `probs`.
fn candidates(probs: &[f32]) -> Candidates {
    let logits: Vec<f32> = probs.iter().map(|p| p.ln()).collect();
    let mut candidates = Candidates::default();
    candidates.fill(&logits);
    candidates
}

fn rng() -> Rng {
    Rng::new(0, 0)
}

fn probabilities(candidates: &Candidates) -> Vec<f32> {
    candidates.as_slice().iter().map(|c| c.p).collect()
}

/// Applies a sampler and then a draw, which computes the softmax. Compares number, order, and probabilities.
#[track_caller]
fn check(probs: &[f32], mut sampler: impl Sampler, expected: &[f32]) {
    let mut candidates = candidates(probs);
    sampler.apply(&mut candidates);
    Dist::new(rng()).apply(&mut candidates);
    assert_near(&probabilities(&candidates), expected);
    assert!(candidates.selected().is_some_and(|c| c.p > 0.0));
}

/// Like `check`, without the draw: XTC and typical keep the probabilities from before the removal.
#[track_caller]
fn check_raw(probs: &[f32], mut sampler: impl Sampler, expected: &[f32]) {
    let mut candidates = candidates(probs);
    sampler.apply(&mut candidates);
    candidates.softmax_if_needed();
    assert_near(&probabilities(&candidates), expected);
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32]) {
    let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(
        found.len() == expected.len() && near,
        "found {found:?}, expected {expected:?}"
    );
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let sum: f32 = logits.iter().map(|l| l.exp()).sum();
    logits.iter().map(|l| l.exp() / sum).collect()
}

impl Candidates {
    /// Computes the softmax if the sampler did not.
    fn softmax_if_needed(&mut self) {
        if self.as_slice().iter().all(|c| c.p == 0.0) {
            self.softmax();
        }
    }
}

const FOUR: [f32; 4] = [0.1, 0.2, 0.3, 0.4];
const FALLING: [f32; 4] = [0.4, 0.3, 0.2, 0.1];
const FLAT: [f32; 5] = [0.2; 5];

#[test]
fn temperature_scales_logits() {
    check(&FOUR, Temperature::new(1.0), &FOUR);
    check(&FOUR, Temperature::new(0.0), &[0.0, 0.0, 0.0, 1.0]);
    check(&FOUR, Temperature::new(-1.0), &[0.0, 0.0, 0.0, 1.0]);
    // The expected weights are p^2, normalized by 0.3.
    check(
        &FOUR,
        Temperature::new(0.5),
        &[0.01 / 0.3, 0.04 / 0.3, 0.09 / 0.3, 0.16 / 0.3],
    );
    check(&[0.4, 0.4, 0.2], Temperature::new(0.0), &[1.0, 0.0, 0.0]);
    check(&[0.1, 0.2, 0.7], Temperature::new(1e-45), &[0.0, 0.0, 1.0]);
}

#[test]
fn dynamic_temperature_follows_entropy() {
    check(&FOUR, DynamicTemperature::new(1.0, 0.0, 1.0), &FOUR);
    check(&FOUR, DynamicTemperature::new(0.0, 0.0, 1.0), &[0.0, 0.0, 0.0, 1.0]);
    // A flat distribution has the maximum entropy: it gets temp + range and stays flat.
    check(&FLAT, DynamicTemperature::new(1.0, 0.5, 1.0), &FLAT);
    // The entropy is 1 of at most 2 bits: the temperature is 0.5 + 1 * 0.5 = 1, so nothing changes.
    check(
        &[0.5, 0.5, 0.0, 0.0],
        DynamicTemperature::new(1.0, 0.5, 1.0),
        &[0.5, 0.5, 0.0, 0.0],
    );
}

#[test]
fn top_k_keeps_most_likely_tokens() {
    check(&FOUR, TopK::new(1), &[1.0]);
    check(&FOUR, TopK::new(3), &[0.444444, 0.333333, 0.222222]);
    check(&FOUR, TopK::new(4), &FALLING);
    check(&FOUR, TopK::new(0), &FOUR);
    check(&FOUR, TopK::new(usize::MAX), &FALLING);
}

#[test]
fn top_p_keeps_smallest_nucleus() {
    check(&FOUR, TopP::new(0.0, 0), &[1.0]);
    check(&FOUR, TopP::new(0.7, 0), &[0.571429, 0.428571]);
    check(&FOUR, TopP::new(0.8, 0), &[0.444444, 0.333333, 0.222222]);
    check(&FOUR, TopP::new(1.0, 0), &FOUR);
    check(&FOUR, TopP::new(0.0, 3), &[0.444444, 0.333333, 0.222222]);
}

#[test]
fn min_p_keeps_relatively_likely_tokens() {
    let three = [0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9];
    let two = [0.3 / 0.7, 0.4 / 0.7];
    check(&FOUR, MinP::new(0.0, 0), &FOUR);
    check(&FOUR, MinP::new(0.24, 0), &FOUR);
    check(&FOUR, MinP::new(0.26, 0), &three);
    check(&FOUR, MinP::new(0.49, 0), &three);
    check(&FOUR, MinP::new(0.51, 0), &two);
    check(&FOUR, MinP::new(0.74, 0), &two);
    check(&FOUR, MinP::new(0.76, 0), &[1.0]);
    check(&FOUR, MinP::new(1.0, 0), &[1.0]);
    check(&FOUR, MinP::new(1.05, 0), &[1.0]);
    check(&FOUR, MinP::new(0.76, 2), &[0.4 / 0.7, 0.3 / 0.7]);
}

#[test]
fn xtc_removes_top_choices() {
    let xtc = |threshold| Xtc::new(1.0, threshold, 0, rng());
    check_raw(&FALLING, xtc(0.09), &[0.1]);
    check_raw(&FALLING, xtc(0.19), &[0.2, 0.1]);
    check_raw(&FALLING, xtc(0.29), &[0.3, 0.2, 0.1]);
    check_raw(&FALLING, xtc(0.39), &FALLING);
    check_raw(&FALLING, xtc(0.6), &FALLING);
    check_raw(&FALLING, Xtc::new(0.0, 0.09, 0, rng()), &FALLING);
    check_raw(&FALLING, Xtc::new(1.0, 0.09, 2, rng()), &FALLING);
    // XTC is applied with the configured probability.
    let mut xtc = Xtc::new(0.25, 0.09, 0, rng());
    let mut n = 0;
    for _ in 0..4000 {
        let mut candidates = candidates(&FALLING);
        xtc.apply(&mut candidates);
        n += usize::from(candidates.len() == 1);
    }
    assert!((900..1100).contains(&n));
}

#[test]
fn typical_keeps_tokens_near_entropy() {
    check_raw(&[0.97, 0.01, 0.01, 0.01], Typical::new(0.5, 0), &[0.97]);
    check_raw(&[0.4, 0.2, 0.2, 0.2], Typical::new(0.5, 0), &[0.2, 0.2, 0.2]);
    check_raw(&[0.4, 0.2, 0.2, 0.2], Typical::new(0.5, 4), &[0.2, 0.2, 0.2, 0.4]);
    check_raw(&FOUR, Typical::new(1.0, 0), &FOUR);
}

#[test]
fn penalties_lower_repeated_tokens() {
    let seen = |tokens: &[Token], repeat, frequency, presence| {
        let mut sampler = Penalties::new(tokens.len(), repeat, frequency, presence);
        tokens.iter().for_each(|&t| sampler.accept(t));
        sampler
    };
    let half = [0.0, 0.0, 0.0, 0.5, 0.5];
    check(&FLAT, seen(&[0], 50.0, 0.0, 0.0), &[0.0, 0.25, 0.25, 0.25, 0.25]);
    check(&FLAT, seen(&[0, 1, 2], 50.0, 0.0, 0.0), &half);
    check(&FLAT, seen(&[0, 1, 2, 0, 0], 50.0, 0.0, 0.0), &half);
    check(
        &FLAT,
        seen(&[0], 1.0, 5.0, 5.0),
        &[0.000011, 0.249997, 0.249997, 0.249997, 0.249997],
    );
    check(
        &FLAT,
        seen(&[0, 1, 2], 1.0, 5.0, 5.0),
        &[0.000023, 0.000023, 0.000023, 0.499966, 0.499966],
    );
    check(
        &FLAT,
        seen(&[0, 1, 2, 0, 0], 1.0, 5.0, 5.0),
        &[0.0, 0.000023, 0.000023, 0.499977, 0.499977],
    );
}

#[test]
fn penalties_forget_and_divide() {
    let mut sampler = Penalties::new(2, 2.0, 1.0, 0.5);
    [0, 0, 1, 2].into_iter().for_each(|t| sampler.accept(t));
    let mut candidates = Candidates::default();
    candidates.fill(&[4.0, 4.0, -4.0, 0.0]);
    // The result does not depend on the order of the candidates.
    let mut shuffled = candidates.clone();
    shuffled.sort_top(4);
    sampler.apply(&mut candidates);
    sampler.apply(&mut shuffled);
    let logits = |c: &Candidates| c.as_slice().iter().map(|c| (c.token, c.logit)).collect::<Vec<_>>();
    assert_eq!(logits(&candidates), [(0, 4.0), (1, 0.5), (2, -9.5), (3, 0.0)]);
    assert_eq!(logits(&shuffled), [(0, 4.0), (1, 0.5), (3, 0.0), (2, -9.5)]);
}

#[test]
fn dry_penalizes_repetitions() {
    let seen = |tokens: &[Token], multiplier, allowed_length, breakers: &[&[Token]]| {
        let breakers = breakers.iter().map(|b| b.to_vec()).collect();
        let mut sampler = Dry::new(multiplier, 1.1, allowed_length, tokens.len(), breakers);
        tokens.iter().for_each(|&t| sampler.accept(t));
        sampler
    };
    let quarter = [0.25; 4];
    check(&quarter, seen(&[0, 1], 1.0, 2, &[]), &quarter);
    check(
        &quarter,
        seen(&[0, 1, 2, 0, 1], 1.0, 2, &[]),
        &[0.296923, 0.296923, 0.109232, 0.296923],
    );
    check(&FLAT, seen(&[0, 1, 3, 4, 0, 1], 1.0, 2, &[&[3]]), &FLAT);
    check(
        &FLAT,
        seen(&[0, 1, 2, 0, 1], 2.0, 2, &[]),
        &[0.241818, 0.241818, 0.032727, 0.241818, 0.241818],
    );
    check(&FLAT, seen(&[0, 1, 2, 3, 4, 0, 1], 1.0, 4, &[]), &FLAT);
    // A penalty that overflows f32 masks the token.
    let long: Vec<Token> = (0..2000).map(|_| 0).collect();
    check(&[0.5, 0.5], seen(&long, 1e6, 0, &[]), &[0.0, 1.0]);
}

#[test]
fn top_n_sigma_keeps_logits_near_maximum() {
    check(&FOUR, TopNSigma::new(1.0), &[0.0, 0.0, 0.428571, 0.571429]);
    check(&FOUR, TopNSigma::new(0.0), &FOUR);
    check(&FOUR, TopNSigma::new(3.0), &FOUR);
}

#[test]
fn bias_is_added_to_logits() {
    let bias = |token, bias| LogitBias { token, bias };
    let ban = f32::NEG_INFINITY;
    check(
        &FOUR,
        Bias::new(&[bias(3, ban), bias(0, 2f32.ln())]),
        &[0.2 / 0.7, 0.2 / 0.7, 0.3 / 0.7, 0.0],
    );
    check(&FOUR, Bias::new(&[bias(0, 1.0), bias(0, -1.0), bias(9, 5.0)]), &FOUR);
}

#[test]
fn mirostat_keeps_the_surprise_near_its_target() {
    // Mirostat assumes a Zipf distribution.
    let probs: Vec<f32> = (1..2000).map(|i| 1.0 / i as f32).collect();
    let samplers: [fn() -> Box<dyn Sampler>; 2] = [
        || Box::new(Mirostat::new(1999, 3.0, 0.1, rng())),
        || Box::new(MirostatV2::new(3.0, 0.1, rng())),
    ];
    for sampler in samplers {
        let mut sampler = sampler();
        let mut surprise = 0.0;
        for _ in 0..2000 {
            let mut candidates = candidates(&probs);
            sampler.apply(&mut candidates);
            surprise -= candidates.selected().unwrap().p.log2() / 2000.0;
        }
        assert!((surprise - 3.0).abs() < 0.1, "{}: {surprise}", sampler.name());
    }
}

#[test]
fn mirostat_survives_degenerate_distributions() {
    for probs in [
        &[1.0][..],
        &[0.0, 1.0],
        &[0.5, 0.5],
        &[0.25; 4],
        &[0.0; 3],
        &[f32::INFINITY, 1.0],
    ] {
        for mut sampler in [
            Box::new(Mirostat::new(probs.len(), 5.0, 0.1, rng())) as Box<dyn Sampler>,
            Box::new(MirostatV2::new(5.0, 0.1, rng())),
        ] {
            let mut candidates = candidates(probs);
            sampler.apply(&mut candidates);
            assert!(candidates.selected().is_some(), "{} on {probs:?}", sampler.name());
        }
    }
}

/// Plain sampling gives a mean probability of 0.3; adaptive-p approaches the target.
#[test]
fn adaptive_p_keeps_probabilities_near_its_target() {
    for target in [0.15, 0.2, 0.3, 0.35] {
        let mut sampler = AdaptiveP::new(target, 0.9, rng());
        let mut mean = 0.0;
        for _ in 0..3000 {
            let mut candidates = candidates(&FOUR);
            sampler.apply(&mut candidates);
            let token = candidates.selected().unwrap().token;
            sampler.accept(token);
            mean += FOUR[token as usize] / 3000.0;
        }
        assert!((mean - target).abs() < 0.03, "{target}: {mean}");
    }
}

#[test]
fn adaptive_p_bends_logits_around_its_target() {
    let logit = |distance: f32| 5.0 - 10.0 * distance * distance / (1.0 + distance);
    let expected = softmax(&[logit(0.2 / 0.3), logit(0.1 / 0.3), logit(0.0), logit(0.1 / 0.3)]);
    check(&FOUR, AdaptiveP::new(0.3, 0.9, rng()), &expected);
    let mut sampler = AdaptiveP::new(0.3, 0.5, rng());
    // The adapted target is twice the configured target minus the mean of 0.3 (weight 1, history) and 0.4
    // (weight 1).
    let mut first = candidates(&FOUR);
    loop {
        sampler.apply(&mut first);
        match first.selected().unwrap().token {
            3 => break,
            _ => first = candidates(&FOUR),
        }
    }
    sampler.accept(3);
    let wanted: f32 = 0.6 - (0.4 + 0.5 * 0.6) / (1.0 + 0.5 * 2.0);
    let expected: Vec<f32> = FOUR.iter().map(|p| logit((p - wanted).abs() / 0.3)).collect();
    check(&FOUR, sampler, &softmax(&expected));
}

#[test]
fn dist_follows_the_distribution() {
    let mut dist = Dist::new(rng());
    let mut counts = [0; 4];
    for _ in 0..10_000 {
        let mut candidates = candidates(&FOUR);
        dist.apply(&mut candidates);
        counts[candidates.selected().unwrap().token as usize] += 1;
    }
    for (count, p) in counts.into_iter().zip(FOUR) {
        assert!((count as f32 / 10_000.0 - p).abs() < 0.02, "{counts:?}");
    }
}

#[test]
fn dist_consumes_random_number_for_single_candidate() {
    let draws = |first: &[f32]| {
        let mut dist = Dist::new(rng());
        dist.apply(&mut candidates(first));
        let flat = [1.0; 256];
        std::array::from_fn::<_, 4, _>(|_| {
            let mut candidates = candidates(&flat);
            dist.apply(&mut candidates);
            candidates.selected().unwrap().token
        })
    };
    assert_eq!(draws(&[1.0]), draws(&[0.5, 0.5]));
}

/// Applies several truncating samplers to 10,000 tokens with logits `ln(token)`.
#[test]
fn sampler_queues_keep_expected_tokens() {
    let n: u32 = 10_000;
    let cases: &[(&str, usize, f32, f32)] = &[
        ("k", 10_000, 1.0, 1.0),
        ("k", 1, 1.0, 1.0),
        ("p", 10_000, 1.0, 1.0),
        ("p", 10_000, 0.0, 1.0),
        ("m", 10_000, 1.0, 1.0),
        ("m", 10_000, 1.0, 1e-12),
        ("k", 100, 1.0, 1.0),
        ("p", 10_000, 0.0003, 1.0),
        ("p", 10_000, 0.8, 1.0),
        ("m", 10_000, 1.0, 9997.9 / 9999.0),
        ("m", 10_000, 1.0, 0.1),
        ("kp", 100, 0.8, 0.1),
        ("km", 100, 0.8, 0.1),
        ("pk", 100, 0.8, 0.1),
        ("pm", 100, 0.8, 0.1),
        ("mk", 100, 0.8, 0.1),
        ("mp", 100, 0.8, 9997.9 / 9999.0),
        ("mp", 100, 0.8, 0.1),
        ("kpm", 100, 0.8, 0.1),
        ("kmp", 100, 0.8, 0.1),
        ("pkm", 100, 0.8, 0.1),
        ("pmk", 100, 0.8, 0.1),
        ("mkp", 100, 0.8, 0.1),
        ("mpk", 100, 0.8, 0.1),
    ];
    for &(queue, k, p, min_p) in cases {
        let logits: Vec<f32> = (0..n).map(|t| (t as f32).ln()).collect();
        let mut candidates = Candidates::default();
        candidates.fill(&logits);
        let mut expected: Vec<Token> = (0..n).rev().collect();
        for letter in queue.chars() {
            let mut sampler: Box<dyn Sampler> = match letter {
                'k' => Box::new(TopK::new(k)),
                'p' => Box::new(TopP::new(p, 1)),
                _ => Box::new(MinP::new(min_p, 1)),
            };
            sampler.apply(&mut candidates);
            let keep = match letter {
                'k' => k.min(expected.len()),
                'p' if p >= 1.0 => expected.len(),
                'p' => {
                    let total: u64 = expected.iter().map(|&t| u64::from(t)).sum();
                    let mut sum = 0;
                    let reached = |t: &Token| {
                        sum += u64::from(*t);
                        sum as f64 >= f64::from(p) * total as f64
                    };
                    expected.iter().position(reached).unwrap() + 1
                }
                _ => expected
                    .iter()
                    .filter(|&&t| t as f32 >= min_p * (n - 1) as f32)
                    .count()
                    .max(1),
            };
            expected.truncate(keep);
            let mut found: Vec<Token> = candidates.as_slice().iter().map(|c| c.token).collect();
            let n_sorted = candidates.n_sorted();
            assert_eq!(found[..n_sorted], expected[..n_sorted], "{queue} {letter}");
            found.sort_by_key(|&t| std::cmp::Reverse(t));
            assert_eq!(found, expected, "{queue} {letter}");
        }
    }
}

/// Returns deterministic pseudo-random values with repetitions.
fn noise(n: usize) -> Vec<f32> {
    let mut rng = Rng::new(3, 3);
    (0..n).map(|_| (rng.uniform() * 64.0).floor() as f32 / 8.0).collect()
}

#[test]
fn fill_allowed_equals_fill_and_retain() {
    for n in [1, 32, 1000, 20_000] {
        for logits in [noise(n), (0..n).map(|i| i as f32).collect(), vec![1.0; n]] {
            let tests: [fn(Token) -> bool; 4] = [|_| true, |_| false, |t| t % 3 == 0, |t| t == 5 || t == 700];
            for is_allowed in tests {
                for top_k in [None, Some(0), Some(1), Some(40), Some(700)] {
                    let (mut listed, mut left) = (Candidates::default(), Candidates::default());
                    listed.fill_allowed(&logits, top_k, is_allowed);
                    left.fill(&logits);
                    left.retain_tokens(is_allowed);
                    left.top_k(top_k.unwrap_or(0));
                    assert_eq!(listed.as_slice(), left.as_slice(), "{top_k:?} of {n}");
                    assert_eq!(listed.n_sorted(), left.n_sorted(), "{top_k:?} of {n}");
                }
            }
        }
    }
}

#[test]
fn partial_sort_equals_full_sort() {
    for n in [1, 31, 32, 33, 1000, 20_000] {
        for logits in [noise(n), (0..n).map(|i| i as f32).collect(), vec![1.0; n]] {
            let mut sorted = Candidates::default();
            sorted.fill(&logits);
            sorted.sort_top(n);
            let tokens = |c: &Candidates, k: usize| c.as_slice()[..k].iter().map(|c| c.token).collect::<Vec<_>>();
            for k in [1, 2, 40, 700, n] {
                let k = k.min(n);
                let expected = tokens(&sorted, k);
                let mut direct = Candidates::default();
                direct.fill_top_k(&logits, k);
                assert_eq!(tokens(&direct, k), expected);
                assert_eq!(direct.len(), k);
                let mut partial = Candidates::default();
                partial.fill(&logits);
                partial.sort_top(k / 2);
                partial.sort_top(k);
                assert_eq!(tokens(&partial, k), expected);
                assert_eq!(partial.len(), n);
            }
            assert!(
                sorted
                    .as_slice()
                    .is_sorted_by(|a, b| (b.logit, a.token) <= (a.logit, b.token))
            );
        }
    }
}

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

#[test]
fn chain_rejects_nan_and_infinite_logits() {
    let everything = SamplerParams {
        penalty_repeat: 1.5,
        dry_multiplier: 1.0,
        top_n_sigma: 2.0,
        typical_p: 0.9,
        xtc_probability: 1.0,
        dynatemp_range: 0.5,
        seed: Some(1),
        ..SamplerParams::default()
    };
    let mirostat = |mirostat| SamplerParams {
        mirostat,
        seed: Some(1),
        ..SamplerParams::default()
    };
    let all = [
        SamplerParams::default(),
        SamplerParams::greedy(),
        everything,
        mirostat(1),
        mirostat(2),
        SamplerParams {
            adaptive_target: 0.5,
            seed: Some(1),
            ..SamplerParams::default()
        },
    ];
    for params in all {
        let sample = |logits: &[f32]| {
            let chain = || SamplerChain::new(&params, logits.len(), None).unwrap();
            let sampled = chain().sample(logits);
            assert_eq!(chain().sample_from(TokenLogits::All(logits)), sampled);
            sampled
        };
        let error = |index, value| Err(SampleError::NotFinite(NotFinite { index, value }));
        assert_eq!(sample(&[1.0, NAN, NAN]), error(1, NAN));
        assert_eq!(sample(&[1.0, -INF, INF, NAN]), error(2, INF));
        assert_eq!(sample(&[NAN; 40]), error(0, NAN));
        assert_eq!(sample(&[-INF, -3e38, -INF]), Ok(1));
        assert_eq!(sample(&[-INF; 2000]), Err(SampleError::NoCandidate { n_vocab: 2000 }));
        assert_eq!(sample(&[]), Err(SampleError::NoCandidate { n_vocab: 0 }));
        let mut sparse = vec![-INF; 5000];
        sparse[4321] = -7.0;
        assert_eq!(sample(&sparse), Ok(4321));
        sparse[7] = NAN;
        assert_eq!(sample(&sparse), error(7, NAN));
    }
}

#[test]
fn default_chain_has_conventional_order() {
    let names = |params: &SamplerParams| SamplerChain::new(params, 8, None).unwrap().names().collect::<Vec<_>>();
    assert_eq!(
        names(&SamplerParams::default()),
        ["top_k", "top_p", "min_p", "temperature", "dist"]
    );
    let bias = vec![LogitBias { token: 3, bias: 1.0 }];
    let mut params = SamplerParams {
        logit_bias: bias,
        penalty_presence: 0.5,
        ..SamplerParams::default()
    };
    assert_eq!(
        names(&params),
        [
            "logit_bias",
            "penalties",
            "top_k",
            "top_p",
            "min_p",
            "temperature",
            "dist"
        ]
    );
    params.mirostat = 2;
    assert_eq!(names(&params), ["logit_bias", "temperature", "mirostat_v2"]);
    let letters: String = SAMPLERS.iter().map(|s| s.letter).collect();
    assert_eq!(letters, "edskypmxti");
    assert!(!SamplerParams::default().samplers.contains(&SamplerKind::Infill));
}

#[test]
fn seed_and_reset_reproduce_tokens() {
    let logits = noise(3000);
    let params = SamplerParams {
        seed: Some(42),
        xtc_probability: 0.5,
        ..SamplerParams::default()
    };
    let run = |chain: &mut SamplerChain| -> Vec<Token> {
        let step = |_| {
            let token = chain.sample(&logits).unwrap();
            chain.accept(token);
            token
        };
        (0..32).map(step).collect()
    };
    let mut chain = SamplerChain::new(&params, logits.len(), None).unwrap();
    let first = run(&mut chain);
    assert_ne!(run(&mut chain), first);
    chain.reset();
    assert_eq!(run(&mut chain), first);
    let other = SamplerParams {
        seed: Some(43),
        ..params.clone()
    };
    assert_ne!(run(&mut SamplerChain::new(&other, logits.len(), None).unwrap()), first);
    let unseeded = SamplerParams { seed: None, ..params };
    let seeds = [0; 2].map(|_| SamplerChain::new(&unseeded, 8, None).unwrap().seed());
    assert_ne!(seeds[0], seeds[1]);
}

#[test]
fn chain_without_selector_is_greedy() {
    let mut chain = SamplerChain::from_samplers(vec![Box::new(Temperature::new(2.0))], 3);
    assert_eq!(chain.sample(&[1.0, 3.0, 2.0]), Ok(1));
    assert_eq!(
        chain.sample(&[1.0]),
        Err(SampleError::LogitCount { expected: 3, found: 1 })
    );
    let mut greedy = SamplerChain::from_samplers(vec![Box::new(Greedy)], 3);
    assert_eq!(greedy.sample(&[3.0, 1.0, 3.0]), Ok(0));
}

#[test]
fn parameters_round_trip_and_reject_invalid_values() {
    for def in PARAMS {
        let mut params = SamplerParams::default();
        if !def.repeatable {
            params.set(def.name, &[&def.default()]).unwrap();
            params.set(def.flag, &[&def.default()]).unwrap();
            assert_eq!(params, SamplerParams::default(), "{}", def.name);
            for rubbish in ["rubbish", "1e999", "NaN", ""] {
                // An empty list of samplers is valid.
                let accepts = def.name == "samplers" && rubbish.is_empty();
                assert_eq!(
                    params.set(def.name, &[rubbish]).is_ok(),
                    accepts,
                    "{} = {rubbish:?}",
                    def.name
                );
            }
            assert!(params.set(def.name, &["1", "1"]).is_err());
        }
        assert!(def.doc.len() > 10 && !def.flag.contains('_'));
    }
    assert_eq!(SamplerKind::Penalties.params().count(), 4);
}

#[test]
fn parameters_parse() {
    let mut params = SamplerParams::default();
    for (text, seed) in [
        ("7", Some(7)),
        ("18446744073709551615", Some(u64::MAX)),
        ("-2", Some(4_294_967_294)),
        ("-2147483648", Some(2_147_483_648)),
        ("4294967295", None),
        ("-1", None),
    ] {
        params.set("seed", &[text]).unwrap();
        assert_eq!(params.seed, seed, "{text}");
    }
    assert!(params.set("seed", &["-9223372036854775809"]).is_err());
    params.set("top-k", &["-1"]).unwrap();
    params.set("samplers", &["top_k;temperature"]).unwrap();
    assert_eq!(params.samplers, [SamplerKind::TopK, SamplerKind::Temperature]);
    params.set("samplers", &["pt"]).unwrap();
    assert_eq!(params.samplers, [SamplerKind::TopP, SamplerKind::Temperature]);
    params.set("logit-bias", &["15+1.5", "7-inf"]).unwrap();
    assert_eq!(params.logit_bias[0], LogitBias { token: 15, bias: 1.5 });
    assert_eq!(params.logit_bias[1], LogitBias { token: 7, bias: -INF });
    params.set("dry-sequence-breaker", &["\\n", "x"]).unwrap();
    assert_eq!(params.dry_sequence_breakers, ["\n", "x"]);
    params.set("dry-sequence-breaker", &["none"]).unwrap();
    assert!(params.dry_sequence_breakers.is_empty());
    assert!(SamplerChain::new(&params, 16, None).is_ok());
    let error = SamplerChain::new(&params, 15, None).unwrap_err().to_string();
    assert_eq!(
        error,
        "sampler parameter logit_bias: token 15 is out of range; the vocabulary has 15 tokens"
    );
}

#[test]
fn parameter_errors_name_range_and_value() {
    let mut params = SamplerParams::default();
    let mut error = |name: &str, text: &str| params.set(name, &[text]).unwrap_err().to_string();
    assert_eq!(error("top-p", "1.5"), "sampler parameter top_p is 1.5; expected 0 to 1");
    assert_eq!(
        error("temp", "hot"),
        "sampler parameter temp is hot; expected a finite number"
    );
    assert_eq!(
        error("repeat-penalty", "0"),
        "sampler parameter penalty_repeat is 0; expected greater than 0, up to 1000000"
    );
    assert_eq!(error("topk", "1"), "unknown sampler parameter \"topk\"");
    let many = "k".repeat(33);
    assert!(error("samplers", &many).contains("expected at most 32 entries of penalties, dry,"));
    assert_eq!(params, SamplerParams::default());
    params.min_p = f32::NAN;
    assert!(SamplerChain::new(&params, 8, None).is_err());
}
