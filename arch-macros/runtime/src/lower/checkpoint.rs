//! Converts `checkpoint` sections.

use arch_lang::builtins::Ty;
use arch_lang::model::checkpoint::{Checkpoint, NamedSource, Setting, TensorSource, Term};
use engine::arch::{
    Checkpoint as Section, CheckpointOrigin, CheckpointSetting, CheckpointSource, ConfigTerm, SettingType,
};

use super::statics::{list, option, text, texts};

/// Converts a section.
pub fn section(c: &Checkpoint) -> Section {
    Section {
        classes: texts(&c.classes),
        settings: list(c.settings.iter().map(setting)),
        checks: list(c.checks.iter().map(|(cond, message)| (term(cond), text(message)))),
        sources: list(c.sources.iter().map(source)),
        ignored: texts(&c.ignored),
        mtp: c
            .mtp
            .as_ref()
            .map(|prefixes| prefixes.each_ref().map(|prefix| text(prefix))),
    }
}

fn setting(s: &Setting) -> CheckpointSetting {
    CheckpointSetting {
        symbol: text(&s.symbol),
        key: text(&s.key),
        ty: match s.ty {
            Some(Ty::Int) => SettingType::Int,
            Some(Ty::Float) => SettingType::Float,
            Some(Ty::Bool) => SettingType::Bool,
            Some(Ty::Str) => SettingType::Text,
            Some(Ty::List) | None => SettingType::Any,
        },
        required: s.required,
        value: list(s.value.iter().map(term)),
    }
}

fn source(s: &TensorSource) -> CheckpointSource {
    CheckpointSource {
        field: text(&s.field),
        gguf: text(&s.gguf),
        part: text(&s.part),
        kind: s.kind,
        group: option(s.group.as_deref()),
        tied: s.tied,
        mtp: s.mtp,
        origins: list(s.origins.iter().map(origin)),
    }
}

fn origin(o: &NamedSource) -> CheckpointOrigin {
    let steps = o.steps.iter().map(|(word, args)| (*word, list(args.iter().map(term))));
    CheckpointOrigin {
        name: text(&o.name),
        stack: o.stack,
        steps: list(steps),
        and: o.and.as_deref().map(|next| &list([origin(next)])[0]),
    }
}

fn term(t: &Term) -> ConfigTerm {
    match t {
        Term::Path(path) => ConfigTerm::Path(text(path)),
        Term::Int(n) => ConfigTerm::Int(*n),
        Term::Float(x) => ConfigTerm::Float(*x),
        Term::Bool(b) => ConfigTerm::Bool(*b),
        Term::Text(value) => ConfigTerm::Text(text(value)),
        Term::Symbol(name) => ConfigTerm::Symbol(text(name)),
        Term::Call(name, args) => ConfigTerm::Call(name, list(args.iter().map(term))),
    }
}
