//! Short flags of several letters (`-ub`, `-ctk`), which hands know from other engines and clap cannot declare:
//! they become their long forms before parsing.

use std::ffi::OsString;

/// Short form to long form.
pub const SHORT_FORMS: &[(&str, &str)] = &[
    ("-tb", "--threads-batch"),
    ("-ub", "--ubatch-size"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-sys", "--system"),
    ("-dev", "--device"),
    ("-ngl", "--n-gpu-layers"),
    ("-ts", "--tensor-split"),
    ("-sm", "--split-mode"),
    ("-mg", "--main-gpu"),
    ("-ot", "--override-tensor"),
    ("-nkvo", "--no-kv-offload"),
    ("-np", "--n-parallel"),
];

/// The arguments with short forms replaced, up to a `--`; `-ub=64` works as `-ub 64` does.
pub fn normalize(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut rest_is_text = false;
    args.into_iter()
        .map(|arg| {
            rest_is_text |= arg == "--";
            if rest_is_text { arg } else { long_form(arg) }
        })
        .collect()
}

fn long_form(arg: OsString) -> OsString {
    let Some(text) = arg.to_str() else { return arg };
    let (flag, value) = text.split_once('=').map_or((text, None), |(f, v)| (f, Some(v)));
    match (SHORT_FORMS.iter().find(|(short, _)| *short == flag), value) {
        (Some((_, long)), None) => long.into(),
        (Some((_, long)), Some(value)) => format!("{long}={value}").into(),
        (None, _) => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(args: &[&str]) -> Vec<OsString> {
        normalize(args.iter().map(OsString::from))
    }

    #[test]
    fn short_forms_become_long_ones() {
        assert_eq!(
            normalized(&["llama", "run", "-ub", "64", "-ctk=f32", "-t", "2"]),
            ["llama", "run", "--ubatch-size", "64", "--cache-type-k=f32", "-t", "2"]
        );
    }

    #[test]
    fn text_stays_as_it_is() {
        assert_eq!(
            normalized(&["llama", "what does -ub do?", "--", "-ub"]),
            ["llama", "what does -ub do?", "--", "-ub"]
        );
    }
}
