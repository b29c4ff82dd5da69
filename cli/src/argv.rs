//! What hands know from other engines and clap cannot declare: short flags of several letters (`-ub`, `-ctk`) become their long forms before
//! parsing, and flags or a model without a command are those of `run`.

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
    ("-cmoe", "--cpu-moe"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-fa", "--flash-attn"),
    ("-cnv", "--conversation"),
    ("-no-cnv", "--raw"),
    ("-st", "--single-turn"),
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-hff", "--hf-file"),
    ("-hft", "--hf-token"),
    ("-mu", "--model-url"),
    ("-jf", "--json-schema-file"),
    ("-sysf", "--system-file"),
    ("-cb", "--cont-batching"),
    ("-kvu", "--kv-unified"),
    ("-to", "--timeout"),
];

/// What the program answers itself.
const OWN_FLAGS: &[&str] = &["-h", "--help", "-V", "--version"];

/// The arguments with short forms replaced, up to a `--`; `-ub=64` works as `-ub 64` does. Without a command it is `run`, if flags or a model come
/// first.
pub fn normalize(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut rest_is_text = false;
    let mut args: Vec<OsString> = args
        .into_iter()
        .map(|arg| {
            rest_is_text |= arg == "--";
            if rest_is_text { arg } else { long_form(arg) }
        })
        .collect();
    if args.get(1).and_then(|arg| arg.to_str()).is_some_and(is_for_run) {
        args.insert(1, "run".into());
    }
    args
}

fn is_for_run(first: &str) -> bool {
    let is_flag = first.starts_with('-') && !OWN_FLAGS.contains(&first);
    is_flag || first.to_ascii_lowercase().ends_with(".gguf")
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

    #[test]
    fn without_a_command_it_is_run() {
        assert_eq!(
            normalized(&["llama", "-hf", "user/repo"]),
            ["llama", "run", "--hf-repo", "user/repo"]
        );
        assert_eq!(normalized(&["llama", "model.gguf"]), ["llama", "run", "model.gguf"]);
        for own in [
            &["llama"][..],
            &["llama", "-h"],
            &["llama", "--version"],
            &["llama", "rnu"],
        ] {
            assert_eq!(normalized(own), own);
        }
    }
}
