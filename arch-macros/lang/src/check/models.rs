//! Checks `models { … }` and `model_is("…")`: published models that their sizes identify.

use proc_macro2::Ident;
use syn::{Expr, Lit, LitStr};

use super::expr::derived;
use super::{Checker, ModelSym, Place};
use crate::ast::ModelDecl;
use crate::builtins::Ty;
use crate::model::{Scalar, ScalarKind};
use crate::parse::{bare, plain_name};
use crate::sym::Dim;

impl Checker<'_> {
    /// Declares the models. Runs before any other section, so that their conditions use built-in symbols only.
    pub(super) fn model_block(&mut self, models: &[ModelDecl]) {
        for m in models {
            let name = m.name.value();
            if self.model_names.first(&name).is_some() {
                self.errors.at(&m.name, format!("model {name:?} is declared twice"));
                continue;
            }
            let cond = self.scalar_of(&m.cond, Ty::Bool);
            let cond = match cond {
                Some(c) if c.per_layer => self.error(
                    &m.cond,
                    "the condition differs by layer; a model is identified by sizes that all layers share",
                ),
                cond => cond,
            };
            self.model_names.add(&name, self.models.len());
            self.models.push(ModelSym {
                name: m.name.clone(),
                cond,
                used: m.inherited,
            });
        }
    }

    /// Checks `model_is("27B")`.
    pub(super) fn model_is(&mut self, at: &Ident, args: &[&Expr]) -> Option<Scalar> {
        let name = match args {
            [arg] => text_of(arg),
            _ => None,
        };
        let found = name.and_then(|name| self.model_names.first(&name.value()));
        let found = found.map(|i| &mut self.models[i]);
        let (Some(name), Some(model)) = (name, found) else {
            return self.unknown_model(at, name);
        };
        model.used = true;
        let (text, cond) = (name.value(), model.cond.clone()?);
        Some(Scalar {
            kind: ScalarKind::Model(Box::new(cond)),
            ty: Ty::Bool,
            per_layer: false,
            text: format!("model_is({text:?})"),
            dim: Dim::default(),
        })
    }

    /// Checks `given(n_swa)`, which is true if the file has the key of a hyperparameter.
    pub(super) fn given(&mut self, at: &Ident, args: &[&Expr]) -> Option<Scalar> {
        if self.place != Place::Hparams {
            return self.error(at, "`given` is only available in `hparams`; bind its result with `let`");
        }
        let [arg] = args else {
            return self.error(
                at,
                "`given` takes the name of one hyperparameter that is read from a key",
            );
        };
        let index = plain_name(arg).and_then(|name| self.find_hparam(&name.to_string()));
        let Some((index, key)) = index.and_then(|i| Some((i, self.hparams[i].key.clone()?))) else {
            return self.error(
                arg,
                "`given` takes the name of a hyperparameter that is read from a key",
            );
        };
        self.use_hparam(index);
        let text = format!("given({})", self.hparams[index].name);
        Some(derived(ScalarKind::Given(key), Ty::Bool, text, &[]))
    }

    /// Checks `file_rows("output.weight")`, the number of rows of a matrix in the file, or 0 without it.
    pub(super) fn file_rows(&mut self, at: &Ident, args: &[&Expr]) -> Option<Scalar> {
        if self.place != Place::Hparams {
            return self.error(
                at,
                "`file_rows` is only available in `hparams`; bind its result with `let`",
            );
        }
        let name = match args {
            [Expr::Lit(lit)] => match &lit.lit {
                syn::Lit::Str(name) => Some(name.value()),
                _ => None,
            },
            _ => None,
        };
        let Some(name) = name else {
            return self.error(at, "`file_rows` takes the name of a tensor in the file, in quotes");
        };
        let text = format!("file_rows({name:?})");
        Some(derived(ScalarKind::FileRows(name), Ty::Int, text, &[]))
    }

    fn unknown_model(&mut self, at: &Ident, name: Option<&LitStr>) -> Option<Scalar> {
        // The intended model is unknown, so no model is reported as unused.
        self.models.iter_mut().for_each(|m| m.used = true);
        let Some(name) = name else {
            return self.error(
                at,
                "`model_is` takes the name of a model in quotes, as declared in `models`",
            );
        };
        let text = name.value();
        let hint = self
            .errors
            .hint(&text, || self.models.iter().map(|m| m.name.value()).collect());
        self.error(name, format!("no model named {text:?} in `models`{hint}"))
    }

    /// Reports models that no condition uses.
    pub(super) fn unused_models(&mut self) {
        for model in self.models.iter().filter(|m| !m.used) {
            let message = format!("model {:?} is never used", model.name.value());
            self.errors.at(&model.name, message);
        }
    }
}

/// Returns the string if the expression is a string literal.
fn text_of(expr: &Expr) -> Option<&LitStr> {
    match bare(expr) {
        Expr::Lit(lit) => match &lit.lit {
            Lit::Str(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}
