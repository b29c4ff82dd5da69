//! Order and presence of the tensors that a loader declares, for generated code and for declarations read at run time.

use super::{Arch, Hparam, Kind, Scalar, ScalarKind, Tensor};

/// Treatment of files without a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// The tensor is required.
    Required,
    /// The tensor is required and may have more rows than declared.
    OrMore,
    /// The tensor is optional.
    Optional,
    /// The tensor is optional, and files may contain another form of it with a different shape.
    Form,
    /// Without the tensor, the tensor with this index is used.
    Tied(usize),
}

impl Arch {
    /// Returns the indices of the tensors of a group, or of tensors outside of layers, in the order that a loader
    /// declares them. Tensors that others depend on come first.
    pub fn in_loading_order(&self, group: Option<usize>) -> Vec<usize> {
        let of_group = || (0..self.tensors.len()).filter(move |&i| self.tensors[i].group == group);
        let (early, late): (Vec<usize>, Vec<usize>) = of_group().partition(|&i| self.is_loaded_early(&self.tensors[i]));
        [early, late].concat()
    }

    /// Returns true if another tensor falls back to this one, or depends on its presence.
    pub fn is_loaded_early(&self, tensor: &Tensor) -> bool {
        let asks = |other: &Tensor| other.conditions.iter().any(|(c, _)| c.asks_for(&tensor.name));
        let in_reach = |other: &&Tensor| tensor.group.is_none() || tensor.group == other.group;
        let falls_back = |other: &Tensor| other.tie.is_some_and(|i| self.tensors[i].name == tensor.name);
        self.tensors
            .iter()
            .filter(in_reach)
            .any(|other| falls_back(other) || asks(other))
    }

    /// Returns the treatment of files without the tensor.
    pub fn presence(&self, tensor: &Tensor) -> Presence {
        let has_forms = || self.tensors.iter().any(|other| tensor.is_other_form_of(other));
        match tensor.tie {
            Some(tie) => Presence::Tied(tie),
            None if tensor.or_more => Presence::OrMore,
            None if !tensor.optional => Presence::Required,
            None if *tensor.kind == Kind::Linear && has_forms() => Presence::Form,
            None => Presence::Optional,
        }
    }

    /// Returns pairs of GGUF key and value for the keys that a condition depends on, in order.
    pub fn found_values<'a>(&'a self, cond: &'a Scalar) -> Vec<(String, &'a Scalar)> {
        let mut found = Vec::new();
        self.collect_found(cond, &mut found);
        found
    }

    fn collect_found<'a>(&'a self, s: &'a Scalar, found: &mut Vec<(String, &'a Scalar)>) {
        let mut add = |key: &str| {
            if found.iter().all(|(known, _)| known != key) {
                found.push((key.to_owned(), s));
            }
        };
        match &s.kind {
            ScalarKind::Builtin(b) => b.key.into_iter().for_each(add),
            ScalarKind::Hparam(name) => {
                for h in &self.hparams {
                    match h {
                        Hparam::Key { name: n, key, .. } if n == name => add(key.trim_start_matches('/')),
                        Hparam::Let { name: n, value, .. } if n == name => return self.collect_found(value, found),
                        _ => {}
                    }
                }
            }
            _ => s.parts().into_iter().for_each(|part| self.collect_found(part, found)),
        }
    }
}
