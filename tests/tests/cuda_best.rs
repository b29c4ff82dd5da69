//! Search for the best logits on the GPU, compared with a sort of all logits.

use std::sync::Arc;

use engine::backend::{Backend, BackendParams, BestRows, Buffer, Device};
use engine::context::{Batch, Context, SeqSet};
use engine::sample::{BestLogits, SamplerChain, SamplerParams, TokenLogits};
use kernels::Precision;
use tests::emulator::with_device;
use tests::{context, fixture, tokens};

use crate::cuda::{card, params};

/// Returns `n` values with ties, zeros of both signs, and negative infinities.
fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed;
    let next = |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match x >> 24 {
            0 => f32::NEG_INFINITY,
            1 => 0.0,
            2 => -0.0,
            _ => (x >> 14 & 0xfff) as f32 / 128.0 - 20.0,
        }
    };
    (0..n).map(next).collect()
}

/// Returns the `k` best indices and their bits.
fn sorted(values: &[f32], k: usize) -> Vec<(u32, u32)> {
    let mut all: Vec<u32> = (0..values.len() as u32).collect();
    all.sort_by(|&a, &b| values[b as usize].total_cmp(&values[a as usize]).then(a.cmp(&b)));
    all.truncate(k);
    all.into_iter().map(|i| (i, values[i as usize].to_bits())).collect()
}

struct Search {
    device: Arc<dyn Device>,
    backend: Box<dyn Backend>,
}

impl Search {
    fn new() -> Search {
        let device = engine::backend::device(&card()).expect("the GPU was found before");
        let params = BackendParams {
            precision: Precision::Fast,
            ..BackendParams::new(1)
        };
        let backend = device.clone().backend(&params).expect("the backend starts");
        Search { device, backend }
    }

    /// Searches rows that start at byte 256 of a buffer. Returns `None` if the search is unsupported.
    fn run(&mut self, rows: &[Vec<f32>], k: usize) -> Option<Vec<f32>> {
        let offset = 256;
        let all: Vec<f32> = rows.concat();
        let bytes: Vec<u8> = all.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let mut buffer: Box<dyn Buffer> = self
            .device
            .buffer_type()
            .allocate(offset + 4 * all.len())
            .expect("the GPU has enough memory");
        buffer.write(offset, &bytes).expect("the buffer is large enough");
        let rows = BestRows {
            offset,
            n_values: rows[0].len(),
            n_rows: rows.len(),
            k,
        };
        let pending = self
            .backend
            .read_best_async(&*buffer, rows)
            .expect("the rows are within the buffer")?;
        let mut bytes = vec![0; 4 * rows.n_rows * BestLogits::n_words(k)];
        pending.wait(&mut bytes).expect("nothing fails");
        let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
        Some(words.map(f32::from_ne_bytes).collect())
    }
}

#[test]
fn device_search_matches_a_sort() {
    with_device("cuda_best::device_search_matches_a_sort", || {
        let mut search = Search::new();
        for (n, n_rows, k) in [
            (40, 1, 40),
            (4096, 2, 1),
            (4097, 1, 256),
            (20_000, 3, 40),
            (130_000, 1, 50),
        ] {
            let rows: Vec<Vec<f32>> = (0..n_rows).map(|row| values(n, row + n as u32)).collect();
            let found = search.run(&rows, k).expect("the search is supported");
            for (row, words) in rows.iter().zip(found.chunks(BestLogits::n_words(k))) {
                let best = BestLogits::from_words(words, n).expect("the row is complete");
                let found: Vec<(u32, u32)> = best.iter().map(|(token, logit)| (token, logit.to_bits())).collect();
                assert_eq!(found, sorted(row, k), "{k} of {n}");
                assert_eq!(best.check(), Ok(()));
            }
        }
        assert!(search.run(&[values(4096, 1)], 257).is_none());
    });
}

#[test]
fn device_search_reports_the_first_invalid_logit() {
    with_device("cuda_best::device_search_reports_the_first_invalid_logit", || {
        let mut search = Search::new();
        for (index, value) in [(0, f32::NAN), (9_000, -f32::NAN), (9_999, f32::INFINITY)] {
            let mut row = values(10_000, 3);
            row[index] = value;
            // A later invalid value is not reported.
            row[9_999] = f32::INFINITY;
            let words = search
                .run(&[values(10_000, 4), row], 40)
                .expect("the search is supported");
            let (first, second) = words.split_at(BestLogits::n_words(40));
            let check = |words| {
                BestLogits::from_words(words, 10_000)
                    .expect("the row is complete")
                    .check()
            };
            assert_eq!(check(first), Ok(()));
            let error = check(second).expect_err("the row has an invalid value");
            assert_eq!((error.index, error.value.to_bits()), (index, value.to_bits()));
        }
    });
}

/// Fills a batch with one token for each of three sequences. `n_best` limits the outputs of the tokens.
fn batch(tokens: &[u32], n_best: [usize; 3]) -> Batch {
    let mut batch = Batch::new();
    for (seq, n_best) in n_best.into_iter().enumerate() {
        batch.push(tokens[seq] as _, 0, SeqSet::one(seq), true);
        batch.limit_last(n_best);
    }
    batch
}

fn decode(ctx: &mut Context, batch: &Batch) {
    ctx.clear();
    ctx.decode(batch).expect("the batch is valid");
}

#[test]
fn limited_outputs_select_the_same_tokens() {
    with_device("cuda_best::limited_outputs_select_the_same_tokens", || {
        let name = "llama-dense";
        let model = fixture(name)
            .model(archs::ALL, &params(&card(), usize::MAX))
            .expect("the fixture's model loads");
        let ids: Vec<u32> = tokens(name);
        let mut ctx = context(&model, |p| p.n_seq_max = 4);
        let n_vocab = model.base().n_vocab();
        let k = (n_vocab / 16).max(1);
        decode(&mut ctx, &batch(&ids, [0; 3]));
        let all: Vec<Vec<f32>> = (0..3)
            .map(|i| ctx.logits(i).expect("all logits were requested").to_vec())
            .collect();
        decode(&mut ctx, &batch(&ids, [k, 0, 1]));
        assert_eq!(ctx.logits(1), Some(&all[1][..]), "an unlimited output has all logits");
        for i in [0, 2] {
            assert!(ctx.logits(i).is_none());
            let Some(TokenLogits::Best(best)) = ctx.output(i) else {
                panic!("the device searches the best logits");
            };
            // Rows of a batch have the largest limit.
            let found: Vec<(u32, u32)> = best.iter().map(|(token, logit)| (token, logit.to_bits())).collect();
            assert_eq!(found, sorted(&all[i], k));
            let params = SamplerParams {
                top_k: k as i32,
                seed: Some(1),
                ..SamplerParams::default()
            };
            let mut chain = SamplerChain::new(&params, n_vocab, None).expect("the parameters are valid");
            let mut same = chain.clone();
            let expected = chain.sample(&all[i]);
            assert_eq!(same.sample_from(TokenLogits::Best(best)), expected);
        }
        // The same batch without a limit returns all logits again.
        decode(&mut ctx, &batch(&ids, [0; 3]));
        assert_eq!(ctx.logits(2), Some(&all[2][..]));
    });
}
