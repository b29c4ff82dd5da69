//! Masks of one grammar state, which are computed immediately or, if that takes too long, on a separate thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, Cancelled, Matcher};

use super::limit::limited;
use super::{GrammarError, refused};
use crate::vocab::Token;

/// Time after which a thread takes over a mask.
const AT_ONCE: Duration = Duration::from_millis(20);
/// Time limit of one mask.
const PER_MASK: Duration = Duration::from_secs(1);
/// Time limit of all masks that a thread computes for one output.
const PER_OUTPUT: Duration = Duration::from_secs(10);

/// Matcher of an output with the mask of the next token.
#[derive(Clone)]
pub(super) struct Masks {
    /// The grammar in its initial state.
    begin: Matcher,
    /// The grammar after the first `n_read` tokens of `text`. It is cancelled if reading took too long.
    matcher: Matcher,
    text: Vec<Token>,
    n_read: usize,
    /// Tokens and masks of the current state take longer than [`AT_ONCE`].
    is_slow: bool,
    /// No other matcher shares the lexer of `matcher`.
    has_own_lexer: bool,
    /// Time that threads have spent on masks of this output.
    spent: Duration,
    next: Next,
}

/// Mask of the next token.
enum Next {
    Unknown,
    Known(SimpleVob),
    Failed(GrammarError),
    /// A thread computes the mask. A clone computes its own.
    Away(Away),
}

impl Masks {
    /// Takes a matcher in its initial state, which must be cancellable.
    pub fn new(begin: Matcher) -> Masks {
        Masks {
            matcher: begin.clone(),
            begin,
            text: Vec::new(),
            n_read: 0,
            is_slow: false,
            has_own_lexer: false,
            spent: Duration::ZERO,
            next: Next::Unknown,
        }
    }

    /// Returns the grammar in its initial state.
    pub fn begin(&self) -> &Matcher {
        &self.begin
    }

    /// Appends a token to the output. A slow grammar reads the token later, together with its mask.
    pub fn accept(&mut self, token: Token) -> Result<(), GrammarError> {
        self.settle(true);
        if let Next::Failed(error) = &self.next {
            return Err(error.clone());
        }
        self.next = Next::Unknown;
        self.text.push(token);
        if self.is_slow {
            return Ok(());
        }
        match limited(&mut self.matcher, AT_ONCE, |matcher| consume(matcher, &[token])) {
            Ok(()) => {
                self.n_read += 1;
                self.is_slow = self.matcher.is_cancelled();
            }
            Err(_) if self.matcher.is_cancelled() => self.is_slow = true,
            Err(error) => {
                self.next = Next::Failed(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns true if [`Masks::take`] returns immediately. Otherwise, a thread computes the mask.
    pub fn is_ready(&mut self) -> bool {
        self.settle(false);
        if matches!(self.next, Next::Unknown) && !self.is_slow {
            let mask = limited(&mut self.matcher, AT_ONCE, Matcher::compute_mask_or_eos);
            self.next = match mask {
                Ok(mask) => Next::Known(mask),
                Err(_) if self.matcher.is_cancelled() => Next::Unknown,
                Err(error) => Next::Failed(refused(&error.to_string())),
            };
            self.is_slow = self.matcher.is_cancelled();
        }
        if matches!(self.next, Next::Unknown) {
            self.send_away();
        }
        !matches!(self.next, Next::Away(_))
    }

    /// Returns the mask of the next token and waits for it if necessary.
    pub fn take(&mut self) -> Mask {
        if !self.is_ready() {
            self.settle(true);
        }
        match std::mem::replace(&mut self.next, Next::Unknown) {
            Next::Known(mask) => Ok(mask),
            Next::Failed(error) => {
                self.next = Next::Failed(error.clone());
                Err(error)
            }
            Next::Unknown | Next::Away(_) => Err(GrammarError::Refused("the mask is missing".to_owned())),
        }
    }

    /// Returns true if the matcher has read the whole output and the output may end here.
    pub fn is_complete(&mut self) -> bool {
        if self.n_read < self.text.len() || self.matcher.is_error() {
            return false;
        }
        let is_accepting = limited(&mut self.matcher, AT_ONCE, Matcher::is_accepting);
        is_accepting.unwrap_or(false) || (self.matcher.is_stopped() && !self.matcher.is_error())
    }

    /// Returns to the initial state.
    pub fn reset(&mut self) {
        *self = Masks::new(self.begin.clone());
    }

    /// Continues with a faster matcher of the same grammar, in its initial state. A failed output remains
    /// failed.
    pub fn replace(&mut self, begin: &Matcher) {
        self.settle(true);
        if matches!(self.next, Next::Failed(_)) || self.matcher.is_error() {
            return;
        }
        let mut faster = Masks::new(begin.clone());
        let read = self.text.iter().try_for_each(|&token| faster.accept(token));
        if read.is_ok() && !faster.is_slow {
            *self = faster;
        }
    }

    /// Treats the current state as slow.
    #[cfg(test)]
    pub fn slow_down(&mut self) {
        self.settle(true);
        self.next = Next::Unknown;
        self.is_slow = true;
    }

    /// Takes the result of the thread if there is one, or waits for it.
    fn settle(&mut self, waits: bool) {
        let Next::Away(away) = &self.next else { return };
        let Some(done) = away.result(waits) else { return };
        self.n_read = done.n_read;
        self.is_slow = done.took > AT_ONCE / 2;
        self.spent += done.took;
        self.matcher = done.matcher;
        self.has_own_lexer = true;
        self.next = match done.mask {
            Ok(_) if self.spent > PER_OUTPUT => Next::Failed(GrammarError::TooSlow {
                work: "all masks of the output",
                limit: PER_OUTPUT,
            }),
            Ok(mask) => Next::Known(mask),
            Err(error) => Next::Failed(error),
        };
    }

    /// Starts a thread that reads the rest of the output and computes the mask.
    fn send_away(&mut self) {
        let matcher = std::mem::replace(&mut self.matcher, cancelled());
        // Matchers that share a lexer wait for each other, so the thread needs a separate lexer.
        let (source, n_read) = if matcher.is_error() || !self.has_own_lexer {
            (Source::Begin(self.begin.clone()), 0)
        } else {
            (Source::Own(matcher), self.n_read)
        };
        let text = self.text[n_read..].to_vec();
        let away = Away::new();
        let work = away.0.clone();
        let run = move || {
            let permit = Permit::take();
            let start = Instant::now();
            let computed = catch_unwind(AssertUnwindSafe(|| work.compute(source, &text)));
            let panicked = |_| {
                let error = GrammarError::Refused("computing the mask of a token panicked".to_owned());
                (cancelled(), Err(error))
            };
            let (matcher, mask) = computed.unwrap_or_else(panicked);
            drop(permit);
            work.finish(Done {
                n_read: n_read + text.len(),
                took: start.elapsed(),
                matcher,
                mask,
            });
        };
        let thread = std::thread::Builder::new().name("grammar-mask".to_owned());
        self.next = match thread.spawn(run) {
            Ok(_) => Next::Away(away),
            Err(e) => Next::Failed(GrammarError::Refused(format!("cannot start a thread for a mask: {e}"))),
        };
    }
}

/// Matcher that a thread starts from.
enum Source {
    /// The initial state; the matcher must first read the whole output.
    Begin(Matcher),
    /// The state after the previous token.
    Own(Matcher),
}

/// Returns a matcher without a state.
fn cancelled() -> Matcher {
    Matcher::new(Err(Cancelled.into()))
}

/// Advances a matcher by tokens, unless the output is complete.
pub(super) fn consume(matcher: &mut Matcher, tokens: &[Token]) -> Result<(), GrammarError> {
    for &token in tokens {
        if matcher.is_stopped() && !matcher.is_error() {
            return Ok(());
        }
        matcher.consume_token(token).map_err(|e| refused(&e.to_string()))?;
    }
    Ok(())
}

/// Handle of a thread that computes a mask. Dropping the handle cancels the thread.
struct Away(Arc<Work>);

struct Work {
    state: Mutex<Progress>,
    changed: Condvar,
}

enum Progress {
    /// The thread has not started to compute.
    Queued,
    Running(CancellationHandle),
    Dropped,
    Finished(Option<Box<Done>>),
}

/// Result of the thread.
struct Done {
    matcher: Matcher,
    n_read: usize,
    took: Duration,
    mask: Mask,
}

type Mask = Result<SimpleVob, GrammarError>;

impl Away {
    fn new() -> Away {
        Away(Arc::new(Work {
            state: Mutex::new(Progress::Queued),
            changed: Condvar::new(),
        }))
    }

    fn result(&self, waits: bool) -> Option<Done> {
        let mut state = self.0.lock();
        if waits {
            let is_running = |state: &mut Progress| !matches!(state, Progress::Finished(_));
            let waited = self.0.changed.wait_while(state, is_running);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        match &mut *state {
            Progress::Finished(done) => done.take().map(|done| *done),
            _ => None,
        }
    }
}

/// The handle of another thread, whose result belongs to the original.
impl Clone for Next {
    fn clone(&self) -> Next {
        match self {
            Next::Unknown | Next::Away(_) => Next::Unknown,
            Next::Known(mask) => Next::Known(mask.clone()),
            Next::Failed(error) => Next::Failed(error.clone()),
        }
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.0.lock(), Progress::Dropped);
        if let Progress::Running(handle) = before {
            handle.cancel();
        }
    }
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compute(&self, source: Source, text: &[Token]) -> (Matcher, Mask) {
        if matches!(*self.lock(), Progress::Dropped) {
            return (
                cancelled(),
                Err(GrammarError::Refused("the output was dropped".to_owned())),
            );
        }
        let mut matcher = match source {
            Source::Own(matcher) => matcher,
            Source::Begin(begin) => begin.deep_clone(),
        };
        if let Some(handle) = matcher.cancellation_handle() {
            let mut state = self.lock();
            match *state {
                Progress::Dropped => handle.cancel(),
                _ => *state = Progress::Running(handle),
            }
        }
        let read = limited(&mut matcher, PER_OUTPUT, |matcher| consume(matcher, text));
        let mask = read.and_then(|()| {
            let mask = limited(&mut matcher, PER_MASK, Matcher::compute_mask_or_eos);
            mask.map_err(|e| refused(&e.to_string()))
        });
        let is_over = mask.is_err() && matcher.is_cancelled();
        let too_slow = GrammarError::TooSlow {
            work: "the mask of a token",
            limit: PER_MASK,
        };
        (matcher, if is_over { Err(too_slow) } else { mask })
    }

    fn finish(&self, done: Done) {
        let mut state = self.lock();
        if !matches!(*state, Progress::Dropped) {
            *state = Progress::Finished(Some(Box::new(done)));
            self.changed.notify_all();
        }
    }
}

/// Right to compute a mask. Half of the cores remain for the model.
struct Permit;

static N_COMPUTING: Mutex<usize> = Mutex::new(0);
static PERMITTED: Condvar = Condvar::new();

impl Permit {
    fn take() -> Permit {
        let most = std::thread::available_parallelism().map_or(1, |n| n.get().div_ceil(2));
        let n = N_COMPUTING.lock().unwrap_or_else(PoisonError::into_inner);
        let n = PERMITTED.wait_while(n, |n| *n >= most);
        *n.unwrap_or_else(PoisonError::into_inner) += 1;
        Permit
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *N_COMPUTING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        PERMITTED.notify_one();
    }
}
