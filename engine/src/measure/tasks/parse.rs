//! Files of tasks.

use super::TaskText;
use crate::measure::error::MeasureError;

/// Maximum number of answers of a question.
const MAX_ANSWERS: u32 = 100;

fn invalid(task: usize, problem: &str) -> MeasureError {
    MeasureError::InvalidTask {
        number: task + 1,
        problem: problem.to_owned(),
    }
}

/// Decodes a text file.
pub(super) fn text(bytes: &[u8]) -> Result<&str, MeasureError> {
    let text = std::str::from_utf8(bytes).map_err(|_| invalid(0, "the file is not UTF-8 text"))?;
    Ok(text.strip_suffix('\n').unwrap_or(text))
}

/// Parses tasks of six lines.
pub(super) fn hellaswag(text: &str) -> Result<Vec<TaskText>, MeasureError> {
    let lines: Vec<&str> = text.split('\n').map(|line| line.trim_end_matches('\r')).collect();
    let n_tasks = lines.len() / 6;
    if !lines.len().is_multiple_of(6) {
        return Err(invalid(
            n_tasks,
            "expected six lines per task: context, index, and four endings",
        ));
    }
    let tasks = lines.chunks_exact(6).enumerate();
    tasks
        .map(|(i, lines)| {
            let right: Option<usize> = lines[1].trim().parse().ok().filter(|&right| right < 4);
            let right = right.ok_or_else(|| invalid(i, "the index of the correct ending is not 0, 1, 2, or 3"))?;
            Ok(TaskText {
                texts: lines[2..]
                    .iter()
                    .map(|ending| format!("{} {ending}", lines[0]))
                    .collect(),
                heads: Vec::new(),
                is_right: (0..4).map(|ending| ending == right).collect(),
            })
        })
        .collect()
}

/// Parses tasks of one line.
pub(super) fn winogrande(text: &str) -> Result<Vec<TaskText>, MeasureError> {
    text.lines()
        .enumerate()
        .map(|(i, line)| sentence(line).map_err(|problem| invalid(i, problem)))
        .collect()
}

fn sentence(line: &str) -> Result<TaskText, &'static str> {
    let mut quoted = false;
    let mut commas = Vec::new();
    for (i, byte) in line.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b',' if !quoted => commas.push(i),
            _ => {}
        }
    }
    let [a, b, c, d, ..] = commas[..] else {
        return Err("expected an index, a sentence, two choices, and an answer, separated by commas");
    };
    let sentence = &line[a + 1..b];
    let quoted = sentence
        .strip_prefix('"')
        .and_then(|sentence| sentence.strip_suffix('"'));
    let (first, second) = quoted
        .unwrap_or(sentence)
        .split_once('_')
        .ok_or("the sentence has no `_`")?;
    let answer = line[d + 1..].split(',').next().unwrap_or_default().trim();
    let right = match answer {
        "1" => 0,
        "2" => 1,
        _ => return Err("the answer is not 1 or 2"),
    };
    let heads = [&line[b + 1..c], &line[c + 1..d]].map(|choice| format!("{first}{choice}"));
    Ok(TaskText {
        texts: heads.iter().map(|head| format!("{head}{second}")).collect(),
        heads: heads.to_vec(),
        is_right: vec![right == 0, right == 1],
    })
}

/// Parses the binary format of llama.cpp: the number of tasks, their positions, and the tasks.
pub(super) fn multiple_choice(bytes: &[u8]) -> Result<Vec<TaskText>, MeasureError> {
    let mut input = Input { bytes, task: 0 };
    let n_tasks = input.number()? as usize;
    if n_tasks == 0 || n_tasks > bytes.len() / 4 {
        return Err(invalid(0, "the number of tasks is 0, or larger than the file"));
    }
    input.take(4 * n_tasks)?;
    (0..n_tasks)
        .map(|task| {
            input.task = task;
            let question = input.string()?;
            let (answers, is_right) = input.answers()?;
            // The second list, which can have several correct answers, is skipped, as in llama.cpp.
            input.answers()?;
            if question.is_empty() || answers.is_empty() || answers.iter().any(String::is_empty) {
                return Err(invalid(task, "the question or an answer is empty"));
            }
            Ok(TaskText {
                texts: answers.iter().map(|answer| format!("{question} {answer}")).collect(),
                heads: Vec::new(),
                is_right,
            })
        })
        .collect()
}

/// Rest of a binary file.
struct Input<'a> {
    bytes: &'a [u8],
    /// Index of the current task, for errors.
    task: usize,
}

impl<'a> Input<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], MeasureError> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(n)
            .ok_or_else(|| invalid(self.task, "the file is truncated"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32, MeasureError> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn string(&mut self) -> Result<String, MeasureError> {
        let n = self.number()? as usize;
        let bytes = self.take(n)?.to_vec();
        String::from_utf8(bytes).map_err(|_| invalid(self.task, "a text is not UTF-8"))
    }

    /// Returns answers, and whether each of them is right.
    fn answers(&mut self) -> Result<(Vec<String>, Vec<bool>), MeasureError> {
        let n = self.number()?;
        if n > MAX_ANSWERS {
            return Err(invalid(self.task, "the question has more than 100 answers"));
        }
        let answers = (0..n).map(|_| self.string()).collect::<Result<_, _>>()?;
        let labels = (0..n)
            .map(|_| Ok(self.number()? == 1))
            .collect::<Result<_, MeasureError>>()?;
        Ok((answers, labels))
    }
}
