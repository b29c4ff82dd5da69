//! Rewrites llama.cpp-style arguments before clap parses them: foreign flag names, and multi-letter short flags such as
//! `-ngl`. A command line without a subcommand defaults to `run`.

use std::ffi::OsString;

use clap::Command;
use clap::error::ErrorKind;

use crate::llama_cpp::{CompatOption, IgnoredOption, Support, commands_with, has_flag};

/// Returns the multi-letter short form of a long flag: `-ub` for `--ubatch-size`.
pub fn short_form(long: &str) -> Option<&'static str> {
    let of_flag =
        CompatOption::all().filter(|option| matches!(option.support, Support::Flag(flag) if flag[2..] == *long));
    let is_short = |name: &&str| !name.starts_with("--") && name.len() > 2;
    of_flag.flat_map(|option| option.names()).find(is_short)
}

/// Flags that clap handles at the top level.
const OWN_FLAGS: &[&str] = &["-h", "--help", "-V", "--version"];

/// Rewrite of a command-line argument.
enum Rewrite {
    /// Keeps the argument unchanged.
    Keep,
    /// Replaces the argument.
    Replace(OsString),
    /// Drops the argument and its value, if any.
    Drop { has_value: bool },
    /// Replaces the argument and drops its value, if any.
    Notice { notice: OsString, has_value: bool },
    /// Replaces the argument with several arguments.
    Expand(Vec<OsString>),
    /// Replace the whole command line with this command.
    Command(&'static str),
}

/// Translates llama.cpp flags up to `--`.
///
/// `-ub=64` is equivalent to `-ub 64`. A command line that starts with a flag or a GGUF file runs `run`.
/// `help COMMAND` becomes `COMMAND --help`.
pub fn normalize(args: impl IntoIterator<Item = OsString>, program: &Command) -> Result<Vec<OsString>, clap::Error> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    if args.get(1).is_some_and(|arg| is_for_run(&arg.to_string_lossy())) {
        args.insert(1, "run".into());
    }
    if args.get(1).is_some_and(|arg| arg == "help") {
        args.remove(1);
        args.push("--help".into());
    }
    let command = command_of(program, &args);
    let mut out = Vec::with_capacity(args.len());
    let mut args = args.into_iter();
    let mut is_value = false;
    while let Some(arg) = args.next() {
        if arg == "--" {
            out.push(arg);
            out.extend(args);
            break;
        }
        let rewrite = match (arg.to_str(), is_value) {
            (Some(text), false) => translated(text, command, program)?,
            _ => Rewrite::Keep,
        };
        is_value = arg
            .to_str()
            .is_some_and(|text| !is_value && takes_any_text(command, text));
        match rewrite {
            Rewrite::Keep => out.push(arg),
            Rewrite::Replace(arg) => out.push(arg),
            Rewrite::Drop { has_value } if has_value => drop(args.next()),
            Rewrite::Drop { .. } => {}
            Rewrite::Notice { notice, has_value } => {
                out.push(notice);
                if has_value {
                    drop(args.next());
                }
            }
            Rewrite::Expand(all) => out.extend(all),
            Rewrite::Command(words) => {
                out.truncate(1);
                out.extend(words.split(' ').map(OsString::from));
                break;
            }
        }
    }
    Ok(out)
}

fn is_for_run(first: &str) -> bool {
    let is_flag = first.starts_with('-') && !OWN_FLAGS.contains(&first);
    is_flag || first.to_ascii_lowercase().ends_with(".gguf")
}

/// Returns the subcommand that a command line selects, or the program itself.
pub fn command_of<'a>(program: &'a Command, args: &[OsString]) -> &'a Command {
    let path = path_of(program, args);
    let nested = |command: &'a Command, name: &String| command.find_subcommand(name).unwrap_or(command);
    path.iter().fold(program, nested)
}

/// Returns the names of the nested subcommands that a command line selects.
pub fn path_of(program: &Command, args: &[OsString]) -> Vec<String> {
    let words = args.iter().skip(1).map_while(|arg| arg.to_str());
    let (mut command, mut path) = (program, Vec::new());
    for word in words {
        let Some(nested) = command.find_subcommand(word) else {
            break;
        };
        path.push(nested.get_name().to_owned());
        command = nested;
    }
    path
}

/// Returns true if `text` is a flag whose value may start with a hyphen.
fn takes_any_text(command: &Command, text: &str) -> bool {
    command.get_arguments().any(|arg| {
        let is_it = match text.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long),
            None => text.len() == 2 && arg.get_short() == text.chars().nth(1),
        };
        is_it && arg.is_allow_hyphen_values_set()
    })
}

fn translated(text: &str, command: &Command, program: &Command) -> Result<Rewrite, clap::Error> {
    let (given, value) = text.split_once('=').map_or((text, None), |(f, v)| (f, Some(v)));
    // llama.cpp also accepts underscores in long flags.
    let spelled = match given.strip_prefix("--") {
        Some(long) => format!("--{}", long.replace('_', "-")),
        None => given.to_owned(),
    };
    if !given.starts_with('-') || has_flag(command, given) || ["-h", "--help"].contains(&given) {
        return Ok(Rewrite::Keep);
    }
    let with_value = |flag: &str| value.map_or_else(|| flag.into(), |value| format!("{flag}={value}").into());
    if has_flag(command, &spelled) {
        return Ok(Rewrite::Replace(with_value(&spelled)));
    }
    // Positional arguments of commands that accept arbitrary text may look like flags.
    let is_text = command.get_positionals().any(clap::Arg::is_allow_hyphen_values_set);
    let Some(option) =
        CompatOption::find(&spelled).filter(|option| !is_text || matches!(option.support, Support::Flag(_)))
    else {
        return Ok(Rewrite::Keep);
    };
    if command.get_name() == "serve"
        && let Some(idle) = IgnoredOption::find(&spelled)
    {
        return Ok(Rewrite::Notice {
            notice: format!("--without-effect={spelled} has no effect: {}", idle.why()).into(),
            has_value: idle.has_value && value.is_none(),
        });
    }
    match option.support {
        Support::Flag(flag) if OWN_FLAGS.contains(&flag) || has_flag(command, flag) => {
            Ok(Rewrite::Replace(with_value(flag)))
        }
        Support::Flag(_) if is_text => Ok(Rewrite::Keep),
        Support::Flag(flag) => Err(unsupported(
            &spelled,
            &format!("use it with {}", commands_with(program, flag).join(", ")),
        )),
        Support::Command(words) => Ok(Rewrite::Command(words)),
        Support::Preset(options) if command.get_name() == "serve" => expand_preset(options, command, program),
        Support::Preset(_) => Err(unsupported(&spelled, "use it with `llama serve`")),
        Support::Ignored(_) => Ok(Rewrite::Drop {
            has_value: !option.value.is_empty() && value.is_none(),
        }),
        Support::Differs(_) => Ok(Rewrite::Keep),
        Support::Unsupported(why) => Err(unsupported(&spelled, why)),
    }
}

/// Translates a flag that represents several options.
fn expand_preset(options: &str, command: &Command, program: &Command) -> Result<Rewrite, clap::Error> {
    let one = |word: &str| match translated(word, command, program)? {
        Rewrite::Replace(arg) => Ok(arg),
        _ => Ok(word.into()),
    };
    let all = options
        .split(' ')
        .map(one)
        .collect::<Result<Vec<OsString>, clap::Error>>()?;
    Ok(Rewrite::Expand(all))
}

fn unsupported(name: &str, why: &str) -> clap::Error {
    clap::Error::raw(
        ErrorKind::UnknownArgument,
        format!("llama.cpp option {name} is not supported: {why}\n"),
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::command_line::Cli;

    fn normalized(args: &[&str]) -> Vec<OsString> {
        normalize(args.iter().map(OsString::from), &Cli::command()).expect("every argument is accepted")
    }

    #[test]
    fn normalize_expands_short_flags() {
        assert_eq!(
            normalized(&["llama", "run", "-ub", "64", "-ctk=f32", "-t", "2"]),
            ["llama", "run", "--ubatch-size", "64", "--cache-type-k=f32", "-t", "2"]
        );
        assert_eq!(
            normalized(&["llama", "run", "--ctx_size=8", "--n-predict", "1", "--typical-p", "1"]),
            ["llama", "run", "--ctx-size=8", "--n-predict", "1", "--typical", "1"]
        );
    }

    #[test]
    fn normalize_drops_ignored_flags() {
        assert_eq!(
            normalized(&["llama", "--jinja", "-dt", "0.1", "hi", "--defrag-thold=2"]),
            ["llama", "run", "hi"]
        );
        assert_eq!(
            normalized(&["llama", "-m", "a", "--list-devices"]),
            ["llama", "devices"]
        );
    }

    #[test]
    fn normalize_keeps_text() {
        assert_eq!(
            normalized(&["llama", "explain -ub, please", "--", "-ub"]),
            ["llama", "explain -ub, please", "--", "-ub"]
        );
        let tokenize = ["llama", "tokenize", "-p", "--numa", "--hellaswag"];
        assert_eq!(normalized(&tokenize), tokenize);
    }

    #[test]
    fn command_defaults_to_run() {
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
