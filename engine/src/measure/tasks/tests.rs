use super::*;

fn problem(result: Result<Vec<TaskText>, MeasureError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn hellaswag_tasks_have_a_context_and_four_endings() {
    let tasks = parse::hellaswag("Cooking: He\n2\na\nb\nc\nd\nRun: She\n0\ne\nf\ng\nh").unwrap();
    assert_eq!(
        tasks[0].texts,
        ["Cooking: He a", "Cooking: He b", "Cooking: He c", "Cooking: He d"]
    );
    assert_eq!(tasks[0].is_right, [false, false, true, false]);
    assert_eq!(tasks[1].texts[3], "Run: She h");
    assert!(problem(parse::hellaswag("a\n0\nb")).contains("six lines"));
    assert!(problem(parse::hellaswag("a\n4\nb\nc\nd\ne")).starts_with("task 1: the index"));
}

#[test]
fn winogrande_tasks_replace_the_blank() {
    let line = "0,\"Sarah, a surgeon, knew Maria so _ got the cases.\",Sarah,Maria,2\n1,I saw _ there.,A,B,1";
    let tasks = parse::winogrande(line).unwrap();
    assert_eq!(
        tasks[0].texts[1],
        "Sarah, a surgeon, knew Maria so Maria got the cases."
    );
    assert_eq!(tasks[0].heads[0], "Sarah, a surgeon, knew Maria so Sarah");
    assert_eq!(
        (&tasks[0].is_right[..], &tasks[1].is_right[..]),
        (&[false, true][..], &[true, false][..])
    );
    for (line, expected) in [
        ("0,a _ b,c", "separated by commas"),
        ("0,a,b,c,1", "no `_`"),
        ("0,_,b,c,3", "1 or 2"),
    ] {
        assert!(problem(parse::winogrande(line)).contains(expected), "{line}");
    }
}

/// Writes a file of multiple-choice tasks.
fn binary(tasks: &[(&str, &[(&str, u32)])]) -> Vec<u8> {
    let mut bytes = (tasks.len() as u32).to_le_bytes().to_vec();
    bytes.resize(4 + 4 * tasks.len(), 0);
    let string = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    for (question, answers) in tasks {
        bytes.extend(string(question));
        bytes.extend((answers.len() as u32).to_le_bytes());
        answers.iter().for_each(|(answer, _)| bytes.extend(string(answer)));
        answers.iter().for_each(|(_, label)| bytes.extend(label.to_le_bytes()));
        bytes.extend(0u32.to_le_bytes());
    }
    bytes
}

#[test]
fn multiple_choice_files_are_read_and_checked() {
    let bytes = binary(&[("Why?", &[("so", 0), ("not", 1), ("ever", 0)]), ("Who?", &[("I", 1)])]);
    let tasks = parse::multiple_choice(&bytes).unwrap();
    assert_eq!(tasks[0].texts, ["Why? so", "Why? not", "Why? ever"]);
    assert_eq!(tasks[0].is_right, [false, true, false]);
    assert_eq!(tasks[1].texts, ["Who? I"]);
    for len in 0..bytes.len() {
        assert!(parse::multiple_choice(&bytes[..len]).is_err(), "{len}");
    }
    assert!(problem(parse::multiple_choice(&u32::MAX.to_le_bytes())).contains("larger than the file"));
    assert!(problem(parse::multiple_choice(&binary(&[("", &[("a", 1)])]))).contains("empty"));
}

fn task(lengths: &[usize], n_common: usize) -> Task {
    Task {
        sequences: lengths.iter().map(|&n| vec![1; n]).collect(),
        n_common,
        scored: Vec::new(),
        is_right: Vec::new(),
    }
}

#[test]
fn packed_groups_fit_the_batch() {
    let tasks = [task(&[5, 6], 4), task(&[9], 1), task(&[2, 2], 1), task(&[20], 1)];
    assert_eq!(pack(&tasks, 20).unwrap(), [0..3, 3..4]);
    assert_eq!(pack(&tasks[..3], 10).unwrap(), [0..1, 1..2, 2..3]);
    assert!(
        pack(&tasks, 19)
            .unwrap_err()
            .to_string()
            .starts_with("task 4: 20 tokens")
    );
    let many = vec![task(&[2; 100], 1); 5];
    assert_eq!(pack(&many, 1000).unwrap(), [0..2, 2..4, 4..5]);
}
