//! What hands know from other engines and clap cannot declare: flags of llama.cpp become those that are declared here, short ones of several
//! letters among them, and flags or a model without a command are those of `run`.

use std::ffi::OsString;

use clap::Command;
use clap::error::ErrorKind;

use crate::llama_cpp::{Foreign, Here, Idle, OPTIONS, commands_with, has_flag};

/// The short form of several letters of a flag, as llama.cpp has it: `-ub` of `--ubatch-size`.
pub fn short_form(long: &str) -> Option<&'static str> {
    let of_flag = OPTIONS
        .iter()
        .filter(|option| matches!(option.here, Here::Is(flag) if flag[2..] == *long));
    let is_short = |name: &&str| !name.starts_with("--") && name.len() > 2;
    of_flag.flat_map(|option| option.names()).find(is_short)
}

/// What the program answers itself.
const OWN_FLAGS: &[&str] = &["-h", "--help", "-V", "--version"];

/// What becomes of an argument.
enum Taken {
    /// It stays.
    AsIs,
    /// It is this.
    Is(OsString),
    /// It is left out, with its value.
    Nothing { has_value: bool },
    /// It is this, and its value is left out.
    Told { told: OsString, has_value: bool },
    /// It is these.
    These(Vec<OsString>),
    /// The whole line is this command.
    Command(&'static str),
}

/// The arguments with llama.cpp's flags translated, up to a `--`; `-ub=64` works as `-ub 64` does. Without a command it is `run`, if flags or a
/// model come first; `help COMMAND` is `COMMAND --help`.
pub fn normalize(args: impl IntoIterator<Item = OsString>, program: &Command) -> Result<Vec<OsString>, clap::Error> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    if args.get(1).and_then(|arg| arg.to_str()).is_some_and(is_for_run) {
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
        let taken = match (arg.to_str(), is_value) {
            (Some(text), false) => translated(text, command, program)?,
            _ => Taken::AsIs,
        };
        is_value = arg
            .to_str()
            .is_some_and(|text| !is_value && takes_any_text(command, text));
        match taken {
            Taken::AsIs => out.push(arg),
            Taken::Is(arg) => out.push(arg),
            Taken::Nothing { has_value } if has_value => drop(args.next()),
            Taken::Nothing { .. } => {}
            Taken::Told { told, has_value } => {
                out.push(told);
                if has_value {
                    drop(args.next());
                }
            }
            Taken::These(all) => out.extend(all),
            Taken::Command(words) => {
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

/// The command that a line names, or the program.
fn command_of<'a>(program: &'a Command, args: &[OsString]) -> &'a Command {
    let words = args.iter().skip(1).map_while(|arg| arg.to_str());
    let mut command = program;
    for word in words {
        match command.find_subcommand(word) {
            Some(nested) => command = nested,
            None => break,
        }
    }
    command
}

/// True if this is a flag that takes values which look like flags.
fn takes_any_text(command: &Command, text: &str) -> bool {
    command.get_arguments().any(|arg| {
        let is_it = match text.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long),
            None => text.len() == 2 && arg.get_short() == text.chars().nth(1),
        };
        is_it && arg.is_allow_hyphen_values_set()
    })
}

fn translated(text: &str, command: &Command, program: &Command) -> Result<Taken, clap::Error> {
    let (given, value) = text.split_once('=').map_or((text, None), |(f, v)| (f, Some(v)));
    // As llama.cpp takes them, too.
    let spelled = match given.strip_prefix("--") {
        Some(long) => format!("--{}", long.replace('_', "-")),
        None => given.to_owned(),
    };
    if !given.starts_with('-') || has_flag(command, given) || ["-h", "--help"].contains(&given) {
        return Ok(Taken::AsIs);
    }
    let with_value = |flag: &str| value.map_or_else(|| flag.into(), |value| format!("{flag}={value}").into());
    if has_flag(command, &spelled) {
        return Ok(Taken::Is(with_value(&spelled)));
    }
    // Words of a command that takes any text may be one.
    let is_text = command.get_positionals().any(clap::Arg::is_allow_hyphen_values_set);
    let Some(option) = Foreign::find(&spelled).filter(|option| !is_text || matches!(option.here, Here::Is(_))) else {
        return Ok(Taken::AsIs);
    };
    if let Some(idle) = Idle::find(&spelled).filter(|_| command.get_name() == "serve") {
        return Ok(Taken::Told {
            told: format!("--without-effect={spelled} has no effect here: {}", idle.why()).into(),
            has_value: idle.has_value && value.is_none(),
        });
    }
    match option.here {
        Here::Is(flag) if OWN_FLAGS.contains(&flag) || has_flag(command, flag) => Ok(Taken::Is(with_value(flag))),
        Here::Is(_) if is_text => Ok(Taken::AsIs),
        Here::Is(flag) => Err(refused(
            &spelled,
            &format!("it is an option of {}", commands_with(program, flag).join(", ")),
        )),
        Here::Command(words) => Ok(Taken::Command(words)),
        Here::StandsFor(options) if command.get_name() == "serve" => stands_for(options, command, program),
        Here::StandsFor(_) => Err(refused(&spelled, "it is an option of `llama serve`")),
        Here::Always(_) => Ok(Taken::Nothing {
            has_value: !option.value.is_empty() && value.is_none(),
        }),
        Here::Differs(_) => Ok(Taken::AsIs),
        Here::No(why) => Err(refused(&spelled, why)),
    }
}

/// The options that one stands for, each as it is here.
fn stands_for(options: &str, command: &Command, program: &Command) -> Result<Taken, clap::Error> {
    let one = |word: &str| match translated(word, command, program)? {
        Taken::Is(arg) => Ok(arg),
        _ => Ok(word.into()),
    };
    let all = options
        .split(' ')
        .map(one)
        .collect::<Result<Vec<OsString>, clap::Error>>()?;
    Ok(Taken::These(all))
}

fn refused(name: &str, why: &str) -> clap::Error {
    clap::Error::raw(
        ErrorKind::UnknownArgument,
        format!("{name} is an option of llama.cpp that cannot be used here: {why}\n"),
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn normalized(args: &[&str]) -> Vec<OsString> {
        normalize(args.iter().map(OsString::from), &Cli::command()).expect("nothing is refused")
    }

    #[test]
    fn short_forms_become_long_ones() {
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
    fn what_changes_nothing_is_left_out() {
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
    fn text_stays_as_it_is() {
        assert_eq!(
            normalized(&["llama", "what does -ub do?", "--", "-ub"]),
            ["llama", "what does -ub do?", "--", "-ub"]
        );
        let tokenize = ["llama", "tokenize", "-p", "--numa", "--hellaswag"];
        assert_eq!(normalized(&tokenize), tokenize);
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
