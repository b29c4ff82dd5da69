//! Model preset files (`--models-preset`), compatible with llama-server. A file has sections `[NAME]` with
//! `OPTION = VALUE` lines. An option is a long flag without dashes, or its environment variable. `[*]`
//! applies to all models.

use std::ffi::OsString;

use clap::{Arg, Command, FromArgMatches};

use super::args::ServeArgs;
use crate::args::values::boolean;
use crate::llama_cpp::{CompatOption, IgnoredOption, Support, has_flag};
use crate::{argv, environment};

/// A model section of a preset file.
#[derive(Debug)]
pub struct Preset {
    /// Model name: either an existing model or a new name.
    pub name: String,
    /// Options for serving the model; the command line takes precedence over the file.
    pub args: ServeArgs,
    /// True if the model is loaded at startup.
    pub at_start: bool,
}

/// A parsed preset file.
#[derive(Debug)]
pub struct Presets {
    /// Options for models that have no section.
    pub others: ServeArgs,
    /// Models that have a section.
    pub models: Vec<Preset>,
}

/// Name of the section that applies to all models.
const ALL: &str = "*";

#[derive(Debug, Default, PartialEq)]
struct Section {
    name: String,
    /// Options of a section as `(line number, key, value)`.
    entries: Vec<(usize, String, String)>,
}

impl Presets {
    /// Parses a preset file with the options of `llama serve` in `program`. Options in `line`, the command line,
    /// override the file.
    pub fn parse(text: &str, line: &[OsString], program: Command) -> Result<Presets, String> {
        let sections = sections(text)?;
        let own = Section::default();
        let all = sections.iter().find(|section| section.name == ALL).unwrap_or(&own);
        let parse = |section: &Section| {
            let mut args: Vec<OsString> = line.iter().take(2).cloned().collect();
            let mut at_start = false;
            for (number, key, value) in all.entries.iter().chain(&section.entries) {
                let wrong = |why: String| format!("line {number}: {why}");
                match key.as_str() {
                    "load-on-startup" => at_start = is_true(value).ok_or_else(|| wrong(no_flag(key, value)))?,
                    // Accepted for compatibility: idle models need no stop timeout.
                    "stop-timeout" => {}
                    _ => args.extend(flag(key, value, &program).map_err(wrong)?),
                }
            }
            args.extend(line.iter().skip(2).cloned());
            let args = serve_args(args, &program).map_err(|e| format!("[{}]: {e}", section.name))?;
            Ok::<_, String>((args, at_start))
        };
        let (others, _) = parse(&own)?;
        let of_models = sections.iter().filter(|section| section.name != ALL);
        let model = |section: &Section| {
            let (args, at_start) = parse(section)?;
            let name = section.name.clone();
            Ok(Preset { name, args, at_start })
        };
        let models = of_models.map(model).collect::<Result<_, String>>()?;
        Ok(Presets { others, models })
    }
}

/// Splits a preset file into sections. Only `version` may precede the first section.
fn sections(text: &str) -> Result<Vec<Section>, String> {
    let mut all: Vec<Section> = Vec::new();
    for (i, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let (number, line) = (i + 1, line.trim());
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.strip_suffix(']').map(str::trim).filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| format!("line {number}: expected [NAME], found {line:?}"))?;
            if all.iter().any(|section| section.name == name) {
                return Err(format!("line {number}: duplicate section [{name}]"));
            }
            all.push(Section {
                name: name.to_owned(),
                entries: Vec::new(),
            });
            continue;
        }
        let entry = line.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
        let (key, value) = entry
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| format!("line {number}: expected OPTION = VALUE, found {line:?}"))?;
        match all.last_mut() {
            Some(section) => section.entries.push((number, key.to_owned(), value.to_owned())),
            None if key == "version" && value == "1" => {}
            None if key == "version" => {
                return Err(format!("line {number}: version is {value}, expected 1"));
            }
            None => return Err(format!("line {number}: {key} is outside any section")),
        }
    }
    Ok(all)
}

/// Converts an option and its value to command-line arguments.
fn flag(key: &str, value: &str, program: &Command) -> Result<Vec<OsString>, String> {
    let serve = program.find_subcommand("serve").unwrap_or(program);
    let is_known = |name: &String| has_flag(serve, name) || CompatOption::find(name).is_some();
    let of_variable = || {
        let option = CompatOption::all().find(|option| !option.variable.is_empty() && option.variable == key);
        let other = || {
            key.strip_prefix("LLAMA_ARG_")
                .map(|rest| rest.to_lowercase().replace('_', "-"))
        };
        option
            .and_then(|option| option.names().last().map(str::to_owned))
            .or_else(|| other().map(|name| format!("--{name}")))
    };
    let spelled = key.replace('_', "-");
    let name = [format!("--{spelled}"), format!("-{key}")].into_iter().find(is_known);
    let name = name
        .or_else(|| of_variable().filter(is_known))
        .ok_or_else(|| format!("unknown `llama serve` option {key}"))?;
    let is_refused = |option: &CompatOption| !matches!(option.support, Support::Flag(_) | Support::Ignored(_));
    let is_foreign = !has_flag(serve, &name);
    if is_foreign && let Some(idle) = IgnoredOption::find(&name) {
        let is_given = idle.has_value || is_true(value).ok_or_else(|| no_flag(key, value))?;
        return Ok(if is_given {
            vec![format!("{name}={value}").into()]
        } else {
            Vec::new()
        });
    }
    if is_foreign && CompatOption::find(&name).as_ref().is_some_and(is_refused) {
        // Command-line parsing reports the reason.
        return Ok(vec![name.into()]);
    }
    if takes_value(serve, &name) {
        return Ok(vec![format!("{name}={value}").into()]);
    }
    let negated = format!("--no-{}", name.trim_start_matches('-'));
    if is_true(value).ok_or_else(|| no_flag(key, value))? {
        Ok(vec![name.into()])
    } else if is_known(&negated) {
        Ok(vec![negated.into()])
    } else {
        Ok(Vec::new())
    }
}

fn takes_value(serve: &Command, name: &str) -> bool {
    if !has_flag(serve, name)
        && let Some(option) = CompatOption::find(name)
    {
        return !option.value.is_empty();
    }
    let is_it = |arg: &&Arg| match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long)),
        None => arg.get_short() == name.chars().nth(1),
    };
    let found = serve.get_arguments().find(is_it);
    found.is_some_and(|arg| arg.get_action().takes_values())
}

fn is_true(value: &str) -> Option<bool> {
    if value.is_empty() { Some(true) } else { boolean(value) }
}

fn no_flag(key: &str, value: &str) -> String {
    format!("{key}: expected true or false, found {value:?}")
}

/// Parses a `llama serve` command line.
fn serve_args(line: Vec<OsString>, program: &Command) -> Result<ServeArgs, String> {
    // The remaining lines describe command-line usage, which does not apply to a file.
    let sentence = |e: &clap::Error| {
        let text = e.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").to_owned()
    };
    let line = argv::normalize(line, program).map_err(|e| sentence(&e))?;
    let program = environment::with_variables(program.clone(), &line);
    let matches = program.try_get_matches_from(line).map_err(|e| sentence(&e))?;
    match matches.subcommand() {
        Some(("serve", matches)) => ServeArgs::from_arg_matches(matches).map_err(|e| sentence(&e)),
        _ => Err("expected options of `llama serve`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::command_line::Cli;

    fn parse(text: &str) -> Result<Presets, String> {
        let line = ["llama", "serve", "--models-preset", "a.ini", "-n", "9"].map(OsString::from);
        Presets::parse(text, &line, Cli::command())
    }

    #[test]
    fn preset_accepts_all_option_spellings() {
        let text = "version = 1\n; a comment\n[*]\nc = 4096\nLLAMA_ARG_N_PARALLEL = 2\n\n[one]\nmodel = /a b.gguf\nngl = 0\nn = 5\n\
                    jinja = true\nc=8192\nload-on-startup = on\n# another\n[user/repo:Q8_0]\nalias = x,y\ncache_type_k = q8_0\nno-webui = false\nmmproj = /a.gguf\npoll = 1\nprio = 2\nswa-full = false\n";
        let presets = parse(text).unwrap();
        assert_eq!(presets.others.serving.context.ctx_size, Some(4096));
        assert_eq!(presets.others.serving.n_parallel, 2);
        let [one, two] = &presets.models[..] else {
            panic!("{presets:?}")
        };
        assert_eq!((one.name.as_str(), one.at_start, two.at_start), ("one", true, false));
        assert_eq!(one.args.model.as_deref(), Some(std::path::Path::new("/a b.gguf")));
        assert_eq!(
            one.args.serving.context.ctx_size,
            Some(8192),
            "a model section overrides [*]"
        );
        assert_eq!(one.args.serving.predict, Some(9), "the command line overrides the file");
        assert_eq!(two.name, "user/repo:Q8_0");
        assert_eq!(two.args.serving.alias, ["x", "y"]);
        assert_eq!(two.args.serving.context.ctx_size, Some(4096));
        assert!(!two.args.no_webui);
        let projector = two.args.serving.media.projector.mmproj.as_deref();
        assert_eq!(projector, Some(std::path::Path::new("/a.gguf")));
        let notices = &two.args.without_effect.notices;
        assert!(
            notices.len() == 2 && notices[0].starts_with("--poll has no effect: "),
            "{notices:?}"
        );
    }

    #[test]
    fn preset_errors_name_line_or_section() {
        for (text, part) in [
            ("c = 1\n", "line 1: c is outside any section"),
            ("version = 2\n", "line 1: version is 2"),
            ("[a\n", "line 1: expected [NAME]"),
            ("[a]\n[a]\n", "line 2: duplicate section [a]"),
            ("[a]\nwords\n", "line 2: expected OPTION = VALUE"),
            ("[a]\nctx-sizes = 3\n", "line 2: unknown `llama serve` option ctx-sizes"),
            (
                "[a]\njinja = perhaps\n",
                "line 2: jinja: expected true or false, found \"perhaps\"",
            ),
            ("[a]\nc = many\n", "[a]: "),
            ("[a]\nsimple-io = true\n", "--simple-io"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
