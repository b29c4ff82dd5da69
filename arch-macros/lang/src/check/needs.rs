//! Checks the requirements of fragments: `needs(eps: f32, router: linear [n_embd -> n_expert], glu(gate,
//! up));`

use proc_macro2::Ident;

use super::{Checker, Place};
use crate::ast::{Dims, Need, Needed};
use crate::builtins::{Ty, builtin, epsilon};
use crate::sym::Dim;

impl Checker<'_> {
    /// Checks required hyperparameters. Runs before their first use, so that a missing one is reported once,
    /// at the `use`.
    pub(super) fn needed_hparams(&mut self, needs: &[Need]) {
        for need in needs {
            let Needed::Hparam(ty) = &need.what else { continue };
            let name = need.name.to_string();
            let found = match self.find_hparam(&name) {
                Some(i) => self.hparams[i].ty,
                None => builtin(&name).map(|b| b.ty).or(epsilon(&name).map(|_| Ty::Float)),
            };
            match found {
                None if self.find_hparam(&name).is_none() => {
                    self.missing(need, format!("hyperparameter `{name}: {ty}`, which is not declared"));
                }
                Some(found) if !fits(found, ty) => {
                    let found = found.name();
                    self.missing(
                        need,
                        format!("hyperparameter `{name}: {ty}`, but `{name}` is declared as `{found}`"),
                    );
                }
                _ => {}
            }
        }
    }

    /// Checks required tensors and functions. Runs before the graph is checked.
    pub(super) fn needed_tensors_and_functions(&mut self, needs: &[Need]) {
        for need in needs {
            let name = &need.name;
            match &need.what {
                Needed::Hparam(_) => {}
                Needed::Tensor(kind, dims) => self.needed_tensor(need, kind, dims),
                Needed::Function(params) => {
                    let found = self.functions.find(&name.to_string()).map(|f| f.params.len());
                    let list: Vec<String> = params.iter().map(Ident::to_string).collect();
                    let form = format!("function `{name}({})`", list.join(", "));
                    match found {
                        None => self.missing(need, format!("{form}, which is not declared")),
                        Some(n) if n != params.len() => {
                            self.missing(need, format!("{form}, but `{name}` takes {n} arguments"));
                        }
                        Some(_) => {}
                    }
                }
            }
        }
    }

    fn needed_tensor(&mut self, need: &Need, kind: &Ident, dims: &Dims) {
        let place = std::mem::replace(&mut self.place, Place::LayerTensors);
        let sizes = dims.first.iter().chain(&dims.output).chain(&dims.count);
        let sizes: Option<Vec<Dim>> = sizes.map(|e| Some(self.scalar_of(e, Ty::Int)?.dim)).collect();
        self.place = place;
        let name = &need.name;
        let found = self.find_tensor(&name.to_string()).map(|i| &self.tensors[i]);
        match (found, sizes) {
            (None, _) => self.missing(need, format!("tensor `{name}: {kind}`, which is not declared")),
            (Some(t), Some(sizes)) if !t.broken && (t.tensor.dims != sizes || *kind != t.tensor.kind.name()) => {
                let (found, shape) = (t.tensor.kind.name(), t.tensor.shape_text.clone());
                let message = format!("tensor `{name}: {kind}`, but it is declared as `{found} {shape}`");
                self.missing(need, message);
            }
            _ => {}
        }
    }

    /// Reports a missing requirement and suppresses errors about its uses.
    fn missing(&mut self, need: &Need, what: String) {
        self.unknown_names.insert(need.name.to_string());
        self.errors.at(&need.by, format!("`{}` needs {what}", need.by));
    }
}

/// Returns true if a value of type `found` can be used as `wanted`.
fn fits(found: Ty, wanted: &Ident) -> bool {
    *wanted == found.name() || (found == Ty::Int && *wanted == "f32")
}
