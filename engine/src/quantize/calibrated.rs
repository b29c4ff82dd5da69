//! Rounding calibrated on a text, based on the second moments of matrix inputs, which are collected for a few layers
//! at a time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::calibration::Calibration;
use super::error::QuantizeError;
use super::moments::{self, MatrixFactors, Moments, SharedMoments};
use super::plan::{PlannedTensor, QuantizePlan};
use super::role::{self, Role};
use crate::context::DecodeError;
use crate::gguf::GgufSet;
use crate::importance::InputObserver;
use crate::measure::{Corpus, MeasureError, check_model, decode_step};
use crate::model::{Model, TableRow};

/// Maximum size of the moments in memory.
const MAX_BYTES: usize = 1 << 30;

/// Rounding with error feedback. When a tensor is encoded, one pass over the text collects its moments. The pass also
/// covers as many later tensors as fit in memory.
pub struct CalibratedRounding<'a> {
    plan: &'a QuantizePlan,
    calibration: &'a Calibration<'a>,
    model: Arc<Model>,
    corpus: Corpus,
    /// True if the token embedding is also the output matrix.
    is_tied: bool,
    max_bytes: usize,
    pass: RefCell<Pass>,
}

/// Factors of one pass.
#[derive(Default)]
struct Pass {
    /// Tensors of the pass.
    tensors: BTreeSet<String>,
    factors: BTreeMap<String, MatrixFactors>,
    /// Tensor whose factors a tensor shares.
    leaders: BTreeMap<String, String>,
}

impl<'a> CalibratedRounding<'a> {
    /// Loads the source model, and divides the text into chunks.
    ///
    /// # Errors
    /// Returns an error if the model cannot be loaded, or the text is too short.
    pub fn new(
        source: &GgufSet,
        plan: &'a QuantizePlan,
        calibration: &'a Calibration<'a>,
    ) -> Result<CalibratedRounding<'a>, QuantizeError> {
        let model = calibration.load(source)?;
        check_model(&model)?;
        let n_chunks = Some(calibration.n_chunks);
        Ok(CalibratedRounding {
            plan,
            corpus: Corpus::new(model.vocab(), calibration.text, calibration.n_ctx, n_chunks)?,
            calibration,
            model,
            is_tied: source.tensor("output.weight").is_none(),
            max_bytes: MAX_BYTES,
            pass: RefCell::default(),
        })
    }

    /// Returns the number of tokens that the model reads.
    pub fn n_tokens(&self) -> usize {
        self.corpus.tokens().len()
    }

    /// Returns true if a tensor is rounded with error feedback.
    pub fn is_calibrated(&self, tensor: &PlannedTensor) -> bool {
        // Among embeddings, only a token embedding that is also the output matrix is multiplied with inputs.
        let is_multiplied = match role::role(&tensor.source) {
            Role::Embedding => self.is_tied && role::split(&tensor.source).1 == "token_embd",
            _ => true,
        };
        is_multiplied && tensor.is_encoded() && kernels::can_encode_rows(tensor.to)
    }

    /// Sets the maximum size of the moments in memory. If the moments of a tensor do not fit, its experts share one
    /// moment, or errors are compensated only within ranges of columns.
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: usize) -> CalibratedRounding<'a> {
        CalibratedRounding { max_bytes, ..self }
    }

    /// Returns the factors of a tensor. `progress` returns false to stop.
    pub(super) fn factors(
        &self,
        tensor: &PlannedTensor,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<Option<MatrixFactors>, QuantizeError> {
        if !self.is_calibrated(tensor) {
            return Ok(None);
        }
        if !self.pass.borrow().tensors.contains(&tensor.source) {
            // Frees the factors of the last pass before new moments are collected.
            self.pass.take();
            let pass = self.collect(tensor, progress)?;
            *self.pass.borrow_mut() = pass;
        }
        let pass = self.pass.borrow();
        let leader = pass.leaders.get(&tensor.source);
        Ok(leader.and_then(|leader| pass.factors.get(leader)).cloned())
    }

    /// Returns the tensors of a pass, starting with tensor `first`.
    fn tensors_from(&self, first: &PlannedTensor) -> BTreeSet<String> {
        let mut tensors = BTreeSet::new();
        // Tensors that read the same inputs as another tensor of the layer need no additional memory.
        let mut inputs = BTreeSet::new();
        let mut bytes = 0usize;
        let later = self
            .plan
            .tensors
            .iter()
            .skip_while(|tensor| tensor.source != first.source);
        for tensor in later.filter(|tensor| self.is_calibrated(tensor)) {
            let (layer, kind) = role::split(&tensor.source);
            let shared = role::siblings(kind).first().copied().unwrap_or(kind);
            if inputs.insert((layer, shared)) {
                let size = moments::Size::of(tensor.shape[0], tensor.n_matrices(), self.max_bytes);
                bytes = bytes.saturating_add(size.bytes);
                if bytes > self.max_bytes && !tensors.is_empty() {
                    break;
                }
            }
            tensors.insert(tensor.source.clone());
        }
        tensors
    }

    /// Reads the text once.
    fn collect(&self, first: &PlannedTensor, progress: &mut dyn FnMut() -> bool) -> Result<Pass, QuantizeError> {
        let tensors = self.tensors_from(first);
        // A chunk in several steps needs the caches of all layers.
        let stops_early = self.corpus.n_ctx() <= self.calibration.n_batch;
        let shared = SharedMoments::new(Moments::new(tensors.clone(), self.max_bytes, stops_early));
        let is_observed = |row: &TableRow| tensors.contains(&row.name);
        let mut context = self.calibration.context(&self.model, &self.corpus)?;
        let observer = InputObserver::new(&self.model, &is_observed, shared.clone());
        context.set_observer(Some(Box::new(observer)));
        for step in self.corpus.steps(self.calibration.n_batch, 0, false) {
            let tokens = step.batch.tokens().iter();
            shared.with(|moments| moments.start_batch(tokens.map(|token| token.pos == 0)));
            let result = decode_step(&mut context, &step);
            if let Some(failure) = shared.with(Moments::failure) {
                return Err(failure.into());
            }
            match result {
                // The observer stops a graph after the last tensor of the pass.
                Err(MeasureError::Decode(DecodeError::Cancelled)) if shared.with(|moments| moments.is_complete()) => {}
                result => result?,
            }
            if !progress() {
                return Err(QuantizeError::Stopped);
            }
        }
        drop(context);
        let (factors, leaders) = shared.take().into_factors();
        Ok(Pass {
            tensors,
            factors,
            leaders,
        })
    }
}
