//! Tests of cached prefixes: conversations that take turns keep their prompts, and owners have separate caches.

use super::*;

/// Maximum number of prompt tokens of a turn that the next turn may have to recompute.
const SLACK: usize = 8;

/// Runs turns of `n` conversations with a common system prompt, one conversation after the other. With
/// `forgets`, a conversation continues without the generated tokens, as if they were reasoning. Returns the
/// largest number of tokens of an earlier prompt that were not found in the cache.
fn most_lost(name: &str, n: usize, forgets: bool) -> usize {
    let (scheduler, mut batcher) = scheduler(name, 4, 8192);
    let system = prompt(1, 200);
    let mut conversations: Vec<Vec<Token>> = (0..n).map(|i| [system.clone(), prompt(10 + i, 60)].concat()).collect();
    let mut before = vec![0_usize; n];
    let mut most = 0_usize;
    for turn in 0..4 {
        for (i, conversation) in conversations.iter_mut().enumerate() {
            let output = complete(&scheduler, &mut batcher, greedy(conversation.clone(), 20));
            let n_cached = output.prompt.unwrap().n_cached;
            most = most.max(before[i].saturating_sub(n_cached));
            before[i] = conversation.len();
            if !forgets {
                conversation.extend(&output.tokens[0]);
            }
            conversation.extend(prompt(40 + 10 * turn + i, 15));
        }
    }
    most
}

#[test]
fn interleaved_conversations_keep_their_prompts() {
    for (name, n) in [("llama-dense", 3), ("llama-dense", 8), ("deepseek2-moe", 3)] {
        for forgets in [false, true] {
            let lost = most_lost(name, n, forgets);
            assert!(
                lost <= SLACK,
                "{name}: {lost} tokens lost, {n} conversations, forgets: {forgets}"
            );
        }
    }
    // A recurrent state continues only from its end.
    for name in ["mamba2-dense", "falcon-h1-dense"] {
        assert!(most_lost(name, 3, false) <= SLACK, "{name}");
    }
}

/// More conversations than sequences: the least recently used one is evicted, and the system prompt stays shared.
#[test]
fn more_conversations_than_sequences_share_the_system_prompt() {
    let lost = most_lost("llama-dense", 9, false);
    assert!((SLACK..200).contains(&lost), "{lost}");
}

#[test]
fn owners_have_separate_caches_unless_shared() {
    let of = |client: u64| Request {
        client,
        ..greedy(prompt(1, 80), 4)
    };
    for shares_cache in [false, true] {
        let (mut scheduler, mut batcher) = scheduler("llama-dense", 2, 512);
        scheduler.settings.shares_cache = shares_cache;
        let mut n_cached = |client| {
            let output = complete(&scheduler, &mut batcher, of(client));
            output.prompt.unwrap().n_cached
        };
        let of_other = if shares_cache { 79 } else { 0 };
        assert_eq!(
            [n_cached(1), n_cached(2), n_cached(1), n_cached(2)],
            [0, of_other, 79, 79]
        );
    }
}

#[test]
fn slots_of_other_owners_look_empty_and_are_inaccessible() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 1, 512);
    let request = Request {
        client: 1,
        ..greedy(prompt(1, 20), 2)
    };
    complete(&scheduler, &mut batcher, request);
    let held = |batcher: &Batcher, owner| batcher.slots(owner).iter().map(|slot| slot.n_held).sum::<usize>();
    assert_eq!((held(&batcher, 1), held(&batcher, 2)), (21, 0));
    let erase = |batcher: &mut Batcher, owner| batcher.memory.erase_slot(0, owner);
    let refused = erase(&mut batcher, 2);
    assert!(matches!(refused, Err(CommandError::Foreign { id: 0 })), "{refused:?}");
    assert_eq!(erase(&mut batcher, 1).unwrap(), 21);
    assert_eq!(erase(&mut batcher, 2).unwrap(), 0, "a free slot belongs to nobody");
}

/// Choices beyond the number of parallel sequences wait, and equal the choices of separate requests.
#[test]
fn choices_above_parallel_sequences_wait() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 2, 512);
    let request = |seed: u64, n: usize| {
        let mut request = greedy(prompt(2, 40), 10);
        request.n = n;
        request.sampler.temp = 1.0;
        request.sampler.seed = Some(seed);
        request
    };
    let output = complete(&scheduler, &mut batcher, request(5, 5));
    let mut ended: Vec<usize> = output.ends.iter().map(|(choice, _)| *choice).collect();
    ended.sort_unstable();
    assert_eq!((ended, output.prompt.unwrap().n_prompt), (vec![0, 1, 2, 3, 4], 40));
    for (i, tokens) in output.tokens.iter().enumerate() {
        let alone = complete(&scheduler, &mut batcher, request(5 + i as u64, 1));
        assert_eq!(alone.tokens[0], *tokens, "choice {i}");
    }
    assert_eq!(scheduler.gauges().n_running, 0);
}

/// Progress begins with the cached tokens, grows with each step, and ends with the whole prompt.
#[test]
fn progress_covers_the_prompt_if_requested() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 1, 512);
    let request = |n: usize, progress: bool| Request {
        progress,
        ..greedy(prompt(1, n), 2)
    };
    assert_eq!(complete(&scheduler, &mut batcher, request(100, false)).progress, []);
    let told = complete(&scheduler, &mut batcher, request(300, true)).progress;
    let done: Vec<usize> = told.iter().map(|progress| progress.n_done).collect();
    assert_eq!((done[0], done[done.len() - 1]), (100, 300));
    assert!(done.len() > 3 && done.is_sorted_by(|a, b| a < b), "{done:?}");
    assert!(
        told.iter()
            .all(|progress| (progress.n_prompt, progress.n_cached) == (300, 100))
    );
    assert!(told[0].t_prompt.is_zero() && told.is_sorted_by(|a, b| a.t_prompt < b.t_prompt));
}
