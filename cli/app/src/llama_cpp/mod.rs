//! Compatibility with llama.cpp's command line. Two tables describe its options: `options` has the equivalent flag of
//! each accepted option, and `unsupported` the reasons why the other options are not supported. Argument parsing,
//! environment variables, and `docs/cli.md` use the tables.

mod ignored;
mod options;
mod unsupported;

use clap::Command;

pub use ignored::IgnoredOption;
use options::ACCEPTED;
use unsupported::UNSUPPORTED;

#[derive(Clone, Copy, Debug)]
pub struct CompatOption {
    /// Spellings of the option, separated by spaces.
    pub names: &'static str,
    /// Example value; empty for boolean options.
    pub value: &'static str,
    /// Environment variable of the option; empty if none exists.
    pub variable: &'static str,
    /// Level of support for the option.
    pub support: Support,
}

/// llama.cpp options that are not supported for one reason.
#[derive(Clone, Copy, Debug)]
struct UnsupportedOptions {
    /// Spellings of each option, separated by spaces.
    names: &'static [&'static str],
    why: &'static str,
}

/// Support for a llama.cpp option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Supported through this flag, with the same value.
    Flag(&'static str),
    /// Equivalent command.
    Command(&'static str),
    /// Preset of `llama serve` options, separated by spaces.
    Preset(&'static str),
    /// Accepted without effect, for this reason.
    Ignored(&'static str),
    /// A flag with the same name but another meaning.
    Differs(&'static str),
    /// Not supported, with the reason.
    Unsupported(&'static str),
}

const fn flag(names: &'static str, value: &'static str, variable: &'static str, flag: &'static str) -> CompatOption {
    CompatOption {
        names,
        value,
        variable,
        support: Support::Flag(flag),
    }
}

const fn command(names: &'static str, command: &'static str) -> CompatOption {
    without_variable(names, "", Support::Command(command))
}

const fn preset(names: &'static str, options: &'static str) -> CompatOption {
    without_variable(names, "", Support::Preset(options))
}

const fn ignored(names: &'static str, value: &'static str, why: &'static str) -> CompatOption {
    without_variable(names, value, Support::Ignored(why))
}

const fn differs(names: &'static str, how: &'static str) -> CompatOption {
    without_variable(names, "", Support::Differs(how))
}

const fn without_variable(names: &'static str, value: &'static str, support: Support) -> CompatOption {
    CompatOption {
        names,
        value,
        variable: "",
        support,
    }
}

impl CompatOption {
    /// Returns the spellings of the option.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.names.split(' ')
    }

    /// Returns all options.
    pub fn all() -> impl Iterator<Item = CompatOption> {
        let of_group = |group: &'static UnsupportedOptions| {
            let option = |names| without_variable(names, "", Support::Unsupported(group.why));
            group.names.iter().copied().map(option)
        };
        ACCEPTED.iter().copied().chain(UNSUPPORTED.iter().flat_map(of_group))
    }

    /// Finds an option by its spelling.
    pub fn find(name: &str) -> Option<CompatOption> {
        CompatOption::all().find(|option| option.names().any(|n| n == name))
    }
}

/// Returns llama.cpp's environment variable for a flag.
pub fn variable_of(flag: &str) -> Option<&'static str> {
    let is_it = |option: &CompatOption| {
        !option.value.is_empty() && matches!(option.support, Support::Flag(f) if f[2..] == *flag)
    };
    let mut variables = CompatOption::all().filter(is_it).map(|option| option.variable);
    variables.find(|variable| !variable.is_empty())
}

/// Returns true if a command has this flag, given as `--long`, an alias, or `-s`.
pub fn has_flag(command: &Command, flag: &str) -> bool {
    command.get_arguments().any(|arg| match flag.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long)),
        None => {
            let mut letters = flag.chars().skip(1);
            arg.get_short().is_some_and(|short| letters.next() == Some(short)) && letters.next().is_none()
        }
    })
}

/// Returns the commands that have a flag, formatted for messages.
pub fn commands_with(program: &Command, flag: &str) -> Vec<String> {
    let shown = program.get_subcommands().filter(|c| !c.is_hide_set());
    let having = shown.filter(|c| has_flag(c, flag));
    having.map(|c| format!("`llama {}`", c.get_name())).collect()
}

/// Describes in Markdown how llama.cpp's options differ. Options with the same meaning are omitted, although some
/// of them have another name in `--help`.
pub fn differences() -> String {
    let presets = CompatOption::all().filter(|option| matches!(option.support, Support::Preset(_)));
    let presets: Vec<String> = presets.map(|option| format!("`{}`", shown(&option))).collect();
    let different = CompatOption::all().filter_map(|option| match option.support {
        Support::Differs(how) => Some(format!("- `{}` {how}\n", shown(&option))),
        _ => None,
    });
    let ignored = by_reason(|option| match option.support {
        Support::Ignored(why) => Some(why),
        _ => None,
    });
    let unsupported = by_reason(|option| match option.support {
        Support::Unsupported(why) if !is_ignored_by_server(option) => Some(why),
        _ => None,
    });
    let ignored_by_server = by_reason(|option| match option.support {
        Support::Unsupported(why) if is_ignored_by_server(option) => Some(why),
        _ => None,
    });
    format!(
        "All options of llama.cpp (release b11434) work under their own names, except those below.\n\n\
         Model presets, only for `llama serve`: {}.\n\n\
         Different meaning:\n\n{}\n\
         Accepted without effect:\n\n{ignored}\n\
         Not supported:\n\n{unsupported}\n\
         Not supported, but ignored by `llama serve` with a notice:\n\n{ignored_by_server}",
        presets.join(", "),
        different.collect::<String>(),
    )
}

/// Returns the shortest long spelling of an option.
fn shown(option: &CompatOption) -> &'static str {
    let long = option.names().filter(|name| name.starts_with("--"));
    let shortest = long.min_by_key(|name| name.len());
    shortest.or_else(|| option.names().next()).unwrap_or_default()
}

fn is_ignored_by_server(option: &CompatOption) -> bool {
    option.names().any(|name| IgnoredOption::find(name).is_some())
}

/// Lists all options with a reason, one line per reason.
fn by_reason(reason: impl Fn(&CompatOption) -> Option<&'static str>) -> String {
    let mut reasons: Vec<&str> = Vec::new();
    for why in CompatOption::all().filter_map(|option| reason(&option)) {
        if !reasons.contains(&why) {
            reasons.push(why);
        }
    }
    let line = |why: &&str| {
        let (mut names, mut seen) = (Vec::new(), Vec::new());
        for option in CompatOption::all().filter(|option| reason(option) == Some(*why)) {
            let name = abbreviated(shown(&option), |other| reason(other) == Some(*why));
            if !seen.contains(&name) {
                names.push(format!("`{name}`"));
                seen.push(name);
            }
        }
        format!("- {}: {why}\n", names.join(", "))
    };
    reasons.iter().map(line).collect()
}

/// Shortens a name to `PREFIX-*` if at least three options have the prefix and all of them satisfy `is_alike`.
fn abbreviated(name: &str, is_alike: impl Fn(&CompatOption) -> bool) -> String {
    let ends = name.match_indices('-').map(|(at, _)| at + 1).filter(|&end| end > 3);
    let is_common = |prefix: &str| {
        let having = || CompatOption::all().filter(|option| option.names().any(|name| name.starts_with(prefix)));
        having().count() > 2 && having().all(|option| is_alike(&option))
    };
    let prefix = ends.map(|end| &name[..end]).find(|prefix| is_common(prefix));
    prefix.map_or_else(|| name.to_owned(), |prefix| format!("{prefix}*"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;
    use crate::argv::normalize;
    use crate::command_line::Cli;

    /// Translates a command line and parses it with clap.
    fn parsed(args: &[&str]) -> Result<Vec<OsString>, clap::Error> {
        let mut program = Cli::command();
        let args = normalize(args.iter().map(OsString::from), &program)?;
        match program.try_get_matches_from_mut(args.clone()) {
            Err(e) if !matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => Err(e),
            _ => Ok(args),
        }
    }

    /// Builds a command line that is complete except for the option.
    fn line<'a>(program: &Command, flag: &str, option: &[&'a str]) -> Vec<&'a str> {
        let command = match commands_with(program, flag).first().map(String::as_str) {
            Some("`llama embed`") => "embed",
            Some("`llama tokenize`") => "tokenize",
            Some("`llama serve`") => "serve",
            Some("`llama perplexity`") => "perplexity",
            Some("`llama imatrix`") => "imatrix",
            Some("`llama cvector`") => "cvector",
            Some("`llama bench`") | Some("`llama inspect`") => "bench",
            _ => "run",
        };
        let mut line = vec!["llama", command];
        // Flags that the option requires.
        match flag {
            _ if ["perplexity", "imatrix"].contains(&command) => line.push("m.gguf"),
            "--positive" => line.extend(["m.gguf", "--negative", "a.txt"]),
            "--negative" => line.extend(["m.gguf", "--positive", "a.txt"]),
            _ if command == "cvector" => line.extend(["m.gguf", "--positive", "a.txt", "--negative", "b.txt"]),
            "--hf-file" => line.extend(["--hf-repo", "user/repo"]),
            "--ssl-key-file" => line.extend(["--ssl-cert-file", "cert.pem"]),
            "--ssl-cert-file" => line.extend(["--ssl-key-file", "key.pem"]),
            "--prompt-cache-ro" => line.extend(["--prompt-cache", "a"]),
            "--image" | "--audio" | "--image-min-tokens" | "--image-max-tokens" => {
                line.extend(["--mmproj", "mmproj.gguf"]);
            }
            "--device-draft" | "--n-gpu-layers-draft" => line.extend(["--draft", "a.gguf"]),
            _ => {}
        }
        if flag == "--kl-divergence" {
            line.extend(["--kl-divergence-base", "base.kld"]);
        }
        line.extend(option);
        line
    }

    #[test]
    fn supported_options_are_accepted() {
        let program = Cli::command();
        for option in CompatOption::all() {
            for name in option.names() {
                let values = option.value.split(' ').filter(|v| !v.is_empty());
                let is_one_value = option.value.contains("::=") || option.value.contains("{{");
                let values: Vec<&str> = if is_one_value {
                    vec![option.value]
                } else {
                    values.collect()
                };
                let given = [&[name], &values[..]].concat();
                match option.support {
                    Support::Flag(flag) => {
                        let line = line(&program, flag, &given);
                        let args = parsed(&line).unwrap_or_else(|e| panic!("{name}: {e}"));
                        assert!(is_given(&program, flag, args), "{name}: {line:?}");
                    }
                    Support::Ignored(_) => {
                        let args = parsed(&line(&program, "", &given)).unwrap_or_else(|e| panic!("{name}: {e}"));
                        assert_eq!(args, ["llama", "run"], "{name}");
                    }
                    Support::Command(command) => {
                        let args = parsed(&given_first(&given)).unwrap_or_else(|e| panic!("{name}: {e}"));
                        let expected: Vec<_> = std::iter::once("llama").chain(command.split(' ')).collect();
                        assert_eq!(args, expected, "{name}");
                    }
                    Support::Preset(options) => {
                        let args = parsed(&["llama", "serve", name]).unwrap_or_else(|e| panic!("{name}: {e}"));
                        assert_eq!(args.len(), 2 + options.split(' ').count(), "{name}");
                        let after = parsed(&["llama", "serve", name, "--port", "9"]).unwrap();
                        assert!(is_given(&program, "--hf-repo", after), "{name}");
                        let error = parsed(&["llama", "run", name]).expect_err(name).to_string();
                        assert!(error.contains("`llama serve`"), "{error}");
                    }
                    Support::Differs(_) => {
                        assert!(has_flag(program.find_subcommand("run").unwrap(), name), "{name}");
                    }
                    Support::Unsupported(_) => {}
                }
            }
        }
    }

    /// Returns true if clap finds the flag, or if the flag prints information about the program.
    fn is_given(program: &Command, flag: &str, args: Vec<OsString>) -> bool {
        let matches = match program.clone().try_get_matches_from(args) {
            Ok(matches) => matches,
            Err(e) => return matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion),
        };
        let (name, matches) = matches.subcommand().expect("a command");
        let command = program.find_subcommand(name).expect("the subcommand is declared");
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(&flag[2..]));
        let source = arg.and_then(|arg| matches.value_source(arg.get_id().as_str()));
        source == Some(clap::parser::ValueSource::CommandLine)
    }

    fn given_first<'a>(given: &[&'a str]) -> Vec<&'a str> {
        [&["llama"], given].concat()
    }

    #[test]
    fn unsupported_options_give_a_reason() {
        for option in CompatOption::all() {
            let Support::Unsupported(why) = option.support else {
                continue;
            };
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

    /// Options without effect are accepted by `llama serve` in every spelling, with a notice.
    #[test]
    fn ignored_server_options_print_a_notice() {
        for idle in IgnoredOption::all() {
            let option = CompatOption::find(idle.name).unwrap_or_else(|| panic!("unknown option {}", idle.name));
            assert!(!idle.why().is_empty(), "{}", idle.name);
            for name in option.names() {
                let value: &[&str] = if idle.has_value { &["1"] } else { &[] };
                let line = [&["llama", "serve", name], value, &["a.gguf"]].concat();
                let args = parsed(&line).unwrap_or_else(|e| panic!("{name}: {e}"));
                let notice = format!("--without-effect={name} has no effect: {}", idle.why());
                assert_eq!(args, ["llama", "serve", &notice, "a.gguf"], "{name}");
                if idle.has_value {
                    let args = parsed(&["llama", "serve", &format!("{name}=1"), "a.gguf"]).unwrap();
                    assert_eq!(args.len(), 4, "{name}");
                }
            }
        }
        let names: Vec<&str> = IgnoredOption::all().map(|idle| idle.name).collect();
        assert!((1..names.len()).all(|i| !names[..i].contains(&names[i])));
        assert!(parsed(&["llama", "run", "--prio", "1"]).is_err());
    }

    #[test]
    fn options_of_other_commands_name_the_command() {
        for (name, command) in [("--pooling", "embed"), ("-np", "bench"), ("--ids", "tokenize")] {
            let error = parsed(&["llama", "run", name, "1"]).expect_err(name).to_string();
            assert!(
                error.contains(name) && error.contains(&format!("`llama {command}`")),
                "{error}"
            );
        }
    }

    #[test]
    fn option_names_are_unique() {
        let mut names: Vec<_> = CompatOption::all().flat_map(|option| option.names()).collect();
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
