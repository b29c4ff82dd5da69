//! Converts a checked model to an architecture with a program. The counterpart of code generation.

mod checkpoint;
mod graph;
mod media;
mod program;
mod scalar;
mod statics;

use std::sync::Arc;

use arch_lang::Errors;
use arch_lang::builtins::BUILTINS;
use arch_lang::model::{Arch, RopeKind as LangRopeKind, Tensor};
use engine::arch::{Architecture, HparamDecl, Loader, Pooling, Registered, RopeKind, TensorDecl};

use statics::{list, option, text};

/// Returns the architecture of a checked declaration, or `None` after recording an error for a part that cannot be
/// interpreted.
pub fn architecture(arch: &Arch, source: &str, digest: u64, errors: &mut Errors) -> Option<Registered> {
    let program = program::program(arch, digest, errors)?;
    let tensor = |t: &Tensor| tensor_decl(arch, t);
    let declared = Architecture {
        name: text(&arch.name),
        like: list(arch.ancestors.iter().map(|a| text(&a.name))),
        rope: rope_kind(Some(arch.rope)),
        rope_with_sections: rope_kind(arch.rope_with_sections),
        bidirectional: arch.bidirectional,
        encoder: arch.encoder.is_some(),
        mtp: arch.mtp.is_some(),
        embeddings: arch.embeddings,
        projects: arch.projects(),
        rank_pooling: arch.rank_pooling.and_then(pooling),
        models: list(arch.models.iter().map(|(name, cond)| (text(name), text(&cond.text)))),
        hparams: list(arch.hparams.iter().filter_map(|h| h.text()).map(|h| HparamDecl {
            name: text(&h.name),
            key: text(&h.key),
            ty: text(&h.ty),
            default: option(h.default.as_deref()),
        })),
        symbols: list(BUILTINS.iter().filter_map(|b| Some((b.name, b.key?)))),
        tensors: list(arch.tensors.iter().map(tensor)),
        checkpoints: list(arch.checkpoints.iter().map(checkpoint::section)),
        test: list(arch.test.iter().map(|(name, size)| (text(name), size.number()))),
        media: arch.media.as_ref().map(media::declaration),
        media_use: media::media_use(arch.media_use),
        load: Loader::Program(Arc::new(program)),
    };
    Some(Registered {
        arch: Box::leak(Box::new(declared)),
        about: text(&about(source)),
    })
}

/// Returns the leading `//!` lines of a file, joined by spaces.
fn about(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    lines.collect::<Vec<_>>().join(" ").trim().to_owned()
}

fn tensor_decl(arch: &Arch, t: &Tensor) -> TensorDecl {
    TensorDecl {
        field: text(&t.name.to_string()),
        gguf: text(&t.gguf),
        kind: t.kind.name(),
        shape: text(&t.shape_text),
        group: t.group.map(|g| text(&arch.groups[g].prefix)),
        optional: t.optional,
        tied: t.tie.map(|i| text(&arch.tensors[i].name.to_string())),
        other_name: option(t.other_name.as_deref()),
        condition: option(t.condition_text().as_deref()),
    }
}

fn rope_kind(kind: Option<LangRopeKind>) -> Option<RopeKind> {
    Some(match kind? {
        LangRopeKind::None => return None,
        LangRopeKind::Norm => RopeKind::Norm,
        LangRopeKind::Neox => RopeKind::Neox,
        LangRopeKind::Mrope => RopeKind::Mrope,
        LangRopeKind::Imrope => RopeKind::Imrope,
    })
}

/// Returns the pooling of a variant's name.
fn pooling(variant: &str) -> Option<Pooling> {
    let mut all = Pooling::ALL.iter().map(|&(_, pooling)| pooling);
    all.find(|pooling| format!("{pooling:?}") == variant)
}
