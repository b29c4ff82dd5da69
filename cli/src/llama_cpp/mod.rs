//! What people type who know llama.cpp: its options mean here what they mean there, or an error says why they are not here. One table, from
//! which the command line is translated, variables of the environment have their names, and `docs/cli.md` has its list.

mod options;
mod server;

use clap::Command;

pub use options::OPTIONS;
#[cfg(test)]
use server::IDLE;
pub use server::Idle;

/// An option of llama.cpp.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    /// Its spellings, separated by blanks.
    pub names: &'static str,
    /// A value that fits; empty where it takes none.
    pub value: &'static str,
    /// Its variable of the environment; empty where it has none.
    pub variable: &'static str,
    /// What it is here.
    pub here: Here,
}

/// What an option of llama.cpp is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    /// This flag, with the same value.
    Is(&'static str),
    /// This command.
    Command(&'static str),
    /// These options of `llama serve`, separated by blanks.
    StandsFor(&'static str),
    /// Taken, and nothing to do: the reason.
    Always(&'static str),
    /// A flag of the same name that means something else.
    Differs(&'static str),
    /// Not here: the reason.
    No(&'static str),
}

const fn is(names: &'static str, value: &'static str, variable: &'static str, flag: &'static str) -> Foreign {
    Foreign {
        names,
        value,
        variable,
        here: Here::Is(flag),
    }
}

const fn command(names: &'static str, command: &'static str) -> Foreign {
    without_variable(names, "", Here::Command(command))
}

const fn stands_for(names: &'static str, options: &'static str) -> Foreign {
    without_variable(names, "", Here::StandsFor(options))
}

const fn always(names: &'static str, value: &'static str, why: &'static str) -> Foreign {
    without_variable(names, value, Here::Always(why))
}

const fn differs(names: &'static str, how: &'static str) -> Foreign {
    without_variable(names, "", Here::Differs(how))
}

const fn no(names: &'static str, why: &'static str) -> Foreign {
    without_variable(names, "", Here::No(why))
}

const fn without_variable(names: &'static str, value: &'static str, here: Here) -> Foreign {
    Foreign {
        names,
        value,
        variable: "",
        here,
    }
}

impl Foreign {
    /// Its spellings.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.names.split(' ')
    }

    /// The option with this spelling.
    pub fn find(name: &str) -> Option<&'static Foreign> {
        OPTIONS.iter().find(|option| option.names().any(|n| n == name))
    }
}

/// The variable that llama.cpp has for what is this flag here.
pub fn variable_of(flag: &str) -> Option<&'static str> {
    let is_it = |option: &&Foreign| !option.value.is_empty() && matches!(option.here, Here::Is(f) if f[2..] == *flag);
    let mut variables = OPTIONS.iter().filter(is_it).map(|option| option.variable);
    variables.find(|variable| !variable.is_empty())
}

/// True if a command has this flag, as `--long`, an alias of it, or `-s`.
pub fn has_flag(command: &Command, flag: &str) -> bool {
    command.get_arguments().any(|arg| match flag.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long)),
        None => {
            let mut letters = flag.chars().skip(1);
            arg.get_short().is_some_and(|short| letters.next() == Some(short)) && letters.next().is_none()
        }
    })
}

/// The commands that have a flag, as people type them.
pub fn commands_with(program: &Command, flag: &str) -> Vec<String> {
    let shown = program.get_subcommands().filter(|c| !c.is_hide_set());
    let having = shown.filter(|c| has_flag(c, flag));
    having.map(|c| format!("`llama {}`", c.get_name())).collect()
}

/// The list as a table in markdown.
pub fn table(program: &Command) -> String {
    let mut text = String::from("| llama.cpp | here |\n|---|---|\n");
    // Those in a row of which the same is to be said are one line.
    let is_idle = |option: &Foreign| option.names().any(|name| Idle::find(name).is_some());
    let are_same = |a: &Foreign, b: &Foreign| {
        a.here == b.here && is_idle(a) == is_idle(b) && matches!(a.here, Here::No(_) | Here::Always(_))
    };
    for options in OPTIONS.chunk_by(are_same) {
        let names = options.iter().flat_map(Foreign::names);
        let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
        text += &format!("| {} | {} |\n", names.join(", "), description(program, &options[0]));
    }
    text
}

fn description(program: &Command, option: &Foreign) -> String {
    let idle = option.names().find_map(Idle::find);
    let text = match option.here {
        Here::Is(flag) => {
            let commands = commands_with(program, flag);
            let place = match commands.iter().any(|c| c == "`llama run`") || commands.is_empty() {
                true => String::new(),
                false => format!(" of {}", commands.join(", ")),
            };
            match option.names().any(|name| name == flag) && place.is_empty() {
                true => "the same".to_owned(),
                false => format!("`{flag}`{place}"),
            }
        }
        Here::Command(command) => format!("`llama {command}`"),
        Here::StandsFor(options) => format!("`{options}` of `llama serve`"),
        Here::Always(why) => format!("taken, changes nothing: {why}"),
        Here::Differs(how) => format!("means something else: it {how}"),
        Here::No(why) => format!("not here: {why}"),
    };
    let text = match idle {
        Some(_) => format!("{text}; `llama serve` takes it, and nothing changes"),
        None => text,
    };
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;
    use crate::args::Cli;
    use crate::argv::normalize;

    /// What a command line becomes, and what clap makes of that.
    fn parsed(args: &[&str]) -> Result<Vec<OsString>, clap::Error> {
        let mut program = Cli::command();
        let args = normalize(args.iter().map(OsString::from), &program)?;
        match program.try_get_matches_from_mut(args.clone()) {
            Err(e) if !matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => Err(e),
            _ => Ok(args),
        }
    }

    /// A command line on which nothing is missing but the option.
    fn line<'a>(program: &Command, flag: &str, option: &[&'a str]) -> Vec<&'a str> {
        let command = match commands_with(program, flag).first().map(String::as_str) {
            Some("`llama embed`") => "embed",
            Some("`llama tokenize`") => "tokenize",
            Some("`llama serve`") => "serve",
            Some("`llama bench`") | Some("`llama inspect`") => "bench",
            _ => "run",
        };
        let mut line = vec!["llama", command];
        // What some need beside them.
        match flag {
            "--hf-file" => line.extend(["--hf-repo", "user/repo"]),
            "--ssl-key-file" => line.extend(["--ssl-cert-file", "cert.pem"]),
            "--ssl-cert-file" => line.extend(["--ssl-key-file", "key.pem"]),
            "--session-read-only" => line.extend(["--session", "a"]),
            "--device-draft" | "--n-gpu-layers-draft" => line.extend(["--draft", "a.gguf"]),
            _ => {}
        }
        line.extend(option);
        line
    }

    #[test]
    fn what_is_said_to_be_taken_is() {
        let program = Cli::command();
        for option in OPTIONS {
            for name in option.names() {
                let values = option.value.split(' ').filter(|v| !v.is_empty());
                let values: Vec<&str> = match option.value.contains("::=") || option.value.contains("{{") {
                    true => vec![option.value],
                    false => values.collect(),
                };
                let given = [&[name], &values[..]].concat();
                match option.here {
                    Here::Is(flag) => {
                        let line = line(&program, flag, &given);
                        let args = parsed(&line).unwrap_or_else(|e| panic!("{name}: {e}"));
                        assert!(is_given(&program, flag, args), "{name}: {line:?}");
                    }
                    Here::Always(_) => {
                        let args = parsed(&line(&program, "", &given)).unwrap_or_else(|e| panic!("{name}: {e}"));
                        assert_eq!(args, ["llama", "run"], "{name}");
                    }
                    Here::Command(command) => {
                        let args = parsed(&given_first(&given)).unwrap_or_else(|e| panic!("{name}: {e}"));
                        let expected: Vec<_> = std::iter::once("llama").chain(command.split(' ')).collect();
                        assert_eq!(args, expected, "{name}");
                    }
                    Here::StandsFor(options) => {
                        let args = parsed(&["llama", "serve", name]).unwrap_or_else(|e| panic!("{name}: {e}"));
                        assert_eq!(args.len(), 2 + options.split(' ').count(), "{name}");
                        let after = parsed(&["llama", "serve", name, "--port", "9"]).unwrap();
                        assert!(is_given(&program, "--hf-repo", after), "{name}");
                        let error = parsed(&["llama", "run", name]).expect_err(name).to_string();
                        assert!(error.contains("`llama serve`"), "{error}");
                    }
                    Here::Differs(_) => {
                        assert!(has_flag(program.find_subcommand("run").unwrap(), name), "{name}");
                    }
                    Here::No(_) => {}
                }
            }
        }
    }

    /// True if clap finds this flag on a line, where it is no question about the program.
    fn is_given(program: &Command, flag: &str, args: Vec<OsString>) -> bool {
        let matches = match program.clone().try_get_matches_from(args) {
            Ok(matches) => matches,
            Err(e) => return matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion),
        };
        let (name, matches) = matches.subcommand().expect("a command");
        let command = program.find_subcommand(name).expect("it is declared");
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(&flag[2..]));
        let source = arg.and_then(|arg| matches.value_source(arg.get_id().as_str()));
        source == Some(clap::parser::ValueSource::CommandLine)
    }

    fn given_first<'a>(given: &[&'a str]) -> Vec<&'a str> {
        [&["llama"], given].concat()
    }

    #[test]
    fn what_is_refused_says_why() {
        for option in OPTIONS {
            let Here::No(why) = option.here else { continue };
            for name in option.names() {
                for given in [
                    &["llama", "run", name][..],
                    &["llama", "run", "a.gguf", &format!("{name}=1")],
                ] {
                    let error = parsed(given).expect_err(name).to_string();
                    assert!(error.contains(name) && error.contains(why), "{name}: {error}");
                }
            }
        }
    }

    /// What changes nothing does not stop a server, however it is written, and the server has it said why.
    #[test]
    fn what_has_no_effect_on_a_server_is_told() {
        for idle in IDLE {
            let option = Foreign::find(idle.name).unwrap_or_else(|| panic!("{} is no option", idle.name));
            assert!(!idle.why().is_empty(), "{}", idle.name);
            for name in option.names() {
                let value = ["1"].into_iter().filter(|_| idle.has_value);
                let line: Vec<&str> = ["llama", "serve", name]
                    .into_iter()
                    .chain(value)
                    .chain(["a.gguf"])
                    .collect();
                let args = parsed(&line).unwrap_or_else(|e| panic!("{name}: {e}"));
                let told = format!("--without-effect={name} has no effect here: {}", idle.why());
                assert_eq!(args, ["llama", "serve", &told, "a.gguf"], "{name}");
                if idle.has_value {
                    let args = parsed(&["llama", "serve", &format!("{name}=1"), "a.gguf"]).unwrap();
                    assert_eq!(args.len(), 4, "{name}");
                }
            }
        }
        let names: Vec<&str> = IDLE.iter().map(|idle| idle.name).collect();
        assert!((1..names.len()).all(|i| !names[..i].contains(&names[i])));
        assert!(parsed(&["llama", "run", "--prio", "1"]).is_err());
    }

    #[test]
    fn options_of_other_commands_say_which() {
        for (name, command) in [("--pooling", "embed"), ("-np", "bench"), ("--ids", "tokenize")] {
            let error = parsed(&["llama", "run", name, "1"]).expect_err(name).to_string();
            assert!(
                error.contains(name) && error.contains(&format!("`llama {command}`")),
                "{error}"
            );
        }
    }

    #[test]
    fn no_name_is_there_twice() {
        let mut names: Vec<_> = OPTIONS.iter().flat_map(Foreign::names).collect();
        let n = names.len();
        names.sort_unstable();
        let doubles: Vec<_> = names
            .windows(2)
            .filter(|pair| pair[0] == pair[1])
            .map(|pair| pair[0])
            .collect();
        assert!(doubles.is_empty() && n > 500, "{n}: {doubles:?}");
    }
}
