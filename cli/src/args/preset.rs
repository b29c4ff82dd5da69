//! Files of models with their options, as llama-server has them (`--models-preset`): sections `[NAME]` of lines `OPTION = VALUE`, where an option is what
//! the command line calls it without dashes, or its variable of the environment. `[*]` is for all models.

use std::ffi::OsString;

use clap::{Arg, Command, CommandFactory, FromArgMatches};

use super::{Cli, Command as Parsed, ServeArgs};
use crate::argv;
use crate::environment;
use crate::llama_cpp::{Foreign, Here, Idle, OPTIONS, has_flag};

/// A model of a file.
#[derive(Debug)]
pub struct Preset {
    /// Its name: that of a model that is there anyway, or a new one.
    pub name: String,
    /// How it is served, where the command line does not say otherwise.
    pub args: ServeArgs,
    /// It is loaded at the start.
    pub at_start: bool,
}

/// What a file says.
#[derive(Debug)]
pub struct Presets {
    /// How models are served that have no section.
    pub others: ServeArgs,
    /// Those that have one.
    pub models: Vec<Preset>,
}

/// The section for all models.
const ALL: &str = "*";

#[derive(Debug, Default, PartialEq)]
struct Section {
    name: String,
    /// Keys and values, each with its line.
    entries: Vec<(usize, String, String)>,
}

impl Presets {
    /// Reads the text of a file. `line`: the command line, which wins over the file.
    pub fn parse(text: &str, line: &[OsString]) -> Result<Presets, String> {
        let program = environment::with_variables(Cli::command());
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
                    // Models end once nobody waits for them.
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

/// The sections of a text. What stands before the first is about the file: its version.
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
                return Err(format!("line {number}: [{name}] stands there twice"));
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
            None => return Err(format!("line {number}: {key} stands in no section")),
        }
    }
    Ok(all)
}

/// An option and its value as the command line has them.
fn flag(key: &str, value: &str, program: &Command) -> Result<Vec<OsString>, String> {
    let serve = program.find_subcommand("serve").unwrap_or(program);
    let is_known = |name: &String| has_flag(serve, name) || Foreign::find(name).is_some();
    let of_variable = || {
        let option = OPTIONS
            .iter()
            .find(|option| !option.variable.is_empty() && option.variable == key);
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
        .ok_or_else(|| format!("there is no option {key} of `llama serve`"))?;
    let is_refused = |option: &&Foreign| !matches!(option.here, Here::Is(_) | Here::Always(_));
    if let Some(idle) = Idle::find(&name).filter(|_| !has_flag(serve, &name)) {
        let is_given = idle.has_value || is_true(value).ok_or_else(|| no_flag(key, value))?;
        return Ok(is_given.then(|| format!("{name}={value}").into()).into_iter().collect());
    }
    if !has_flag(serve, &name) && Foreign::find(&name).as_ref().is_some_and(is_refused) {
        // The command line says why.
        return Ok(vec![name.into()]);
    }
    if takes_value(serve, &name) {
        return Ok(vec![format!("{name}={value}").into()]);
    }
    let negated = format!("--no-{}", name.trim_start_matches('-'));
    match is_true(value).ok_or_else(|| no_flag(key, value))? {
        true => Ok(vec![name.into()]),
        false if is_known(&negated) => Ok(vec![negated.into()]),
        false => Ok(Vec::new()),
    }
}

fn takes_value(serve: &Command, name: &str) -> bool {
    let foreign = Foreign::find(name).filter(|_| !has_flag(serve, name));
    if let Some(option) = foreign {
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
    match value.to_ascii_lowercase().as_str() {
        "true" | "on" | "yes" | "1" | "enabled" | "" => Some(true),
        "false" | "off" | "no" | "0" | "disabled" => Some(false),
        _ => None,
    }
}

fn no_flag(key: &str, value: &str) -> String {
    format!("{key} is {value:?}, expected true or false")
}

/// The arguments of `llama serve` on a command line.
fn serve_args(line: Vec<OsString>, program: &Command) -> Result<ServeArgs, String> {
    // Only the first lines: the rest tells of the command line.
    let sentence = |e: &clap::Error| {
        let text = e.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").to_owned()
    };
    let line = argv::normalize(line, program).map_err(|e| sentence(&e))?;
    let matches = program.clone().try_get_matches_from(line).map_err(|e| sentence(&e))?;
    match Cli::from_arg_matches(&matches).map_err(|e| sentence(&e))?.command {
        Parsed::Serve(args) => Ok(args),
        _ => Err("the options are not those of `llama serve`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Presets, String> {
        let line = ["llama", "serve", "--models-preset", "a.ini", "-n", "9"].map(OsString::from);
        Presets::parse(text, &line)
    }

    #[test]
    fn sections_have_options_under_all_their_names() {
        let text = "version = 1\n; a comment\n[*]\nc = 4096\nLLAMA_ARG_N_PARALLEL = 2\n\n[one]\nmodel = /a b.gguf\nngl = 0\nn = 5\n\
                    jinja = true\nc=8192\nload-on-startup = on\n# another\n[user/repo:Q8_0]\nalias = x,y\ncache_type_k = q8_0\nno-webui = false\nmmproj = /a.gguf\nprio = 2\nswa-full = false\n";
        let presets = parse(text).unwrap();
        assert_eq!(presets.others.serving.context.ctx_size, Some(4096));
        assert_eq!(presets.others.serving.n_parallel, 2);
        let [one, two] = &presets.models[..] else {
            panic!("{presets:?}")
        };
        assert_eq!((one.name.as_str(), one.at_start, two.at_start), ("one", true, false));
        assert_eq!(one.args.model.as_deref(), Some(std::path::Path::new("/a b.gguf")));
        assert_eq!(one.args.serving.context.ctx_size, Some(8192), "over that of all");
        assert_eq!(one.args.serving.predict, Some(9), "the command line wins");
        assert_eq!(two.name, "user/repo:Q8_0");
        assert_eq!(two.args.serving.alias, ["x", "y"]);
        assert_eq!(two.args.serving.context.ctx_size, Some(4096));
        assert!(!two.args.no_webui);
        let told = &two.args.without_effect.told;
        assert!(
            told.len() == 2 && told[0].starts_with("--mmproj has no effect here: "),
            "{told:?}"
        );
    }

    #[test]
    fn what_cannot_be_is_told_with_its_place() {
        for (text, part) in [
            ("c = 1\n", "line 1: c stands in no section"),
            ("version = 2\n", "line 1: version is 2"),
            ("[a\n", "line 1: expected [NAME]"),
            ("[a]\n[a]\n", "line 2: [a] stands there twice"),
            ("[a]\nwords\n", "line 2: expected OPTION = VALUE"),
            ("[a]\nctx-sizes = 3\n", "line 2: there is no option ctx-sizes"),
            ("[a]\njinja = perhaps\n", "line 2: jinja is \"perhaps\""),
            ("[a]\nc = many\n", "[a]: "),
            ("[a]\nsimple-io = true\n", "--simple-io"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
