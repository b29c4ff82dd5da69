//! Media encoders: the project's own files, inheritance, and error messages.

mod common;

use std::path::Path;

use arch_lang::model::{ImageSize, MediaUse, Medium, TextPart, TileGrid};
use arch_lang::{Diagnostic, EncoderDirectory, compile_file};

fn library() -> EncoderDirectory {
    EncoderDirectory(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archs"))
}

/// Valid declaration that uses the parts of an encoder. Each case replaces one part.
const BASE: &str = r#"
encoder! {
    name: "base";
    of: image;
    hparams {
        n_out: usize = "projection_dim";
        image_size: usize = "image_size";
        merge: usize = "projector.scale_factor" or 2;
    }
    image { size: fixed(image_size); resize: bicubic; patches: 14 in blocks(merge); }
    text { "<start>", image, "<end>" }
    tensors {
        patch_embd: linear "v.patch_embd" [3 * 14 * 14 -> n_embd];
        position_embd: embed "v.position_embd" [n_embd, 64];
        fc: linear "mm.fc" [n_embd * merge * merge -> n_out];
        layer { up: linear "ffn_up" [n_embd -> n_embd]; }
    }
    graph {
        let x = patch_embd(patches) + position_embd[positions];
        for layer { x += up(x); }
        fc(merge(group_rows(x, merge * merge)))
    }
    test { n_embd: 64, n_head: 4, n_layer: 2, n_ff: 96, image_size: 112, n_out: 64 }
}
"#;

/// Returns the messages for [`BASE`] with one part replaced.
fn messages(part: &str, instead: &str) -> Vec<String> {
    assert!(BASE.contains(part), "{part}");
    let text = BASE.replacen(part, instead, 1);
    let faults = compile_file("my.rs", &text, &library()).err().unwrap_or_default();
    faults.iter().map(common::shown).collect()
}

#[test]
fn encoder_files_compile_in_at_most_forty_lines() {
    let mut n = 0;
    for entry in std::fs::read_dir(library().0.join("encoders")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let arch = match compile_file(name, &text, &library()) {
            Ok(arch) => arch.unwrap(),
            Err(faults) => panic!("{name}: {faults:?}"),
        };
        let code = text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with("//"));
        let n_lines = code.count();
        assert!(n_lines <= 40, "{name} has {n_lines} lines");
        let prefix = match arch.media.as_ref().unwrap().medium {
            Medium::Image => "v.blk",
            Medium::Audio => "a.blk",
        };
        assert_eq!(arch.groups[0].prefix, prefix);
        assert!(arch.bidirectional && arch.media_use == MediaUse::None);
        n += 1;
    }
    assert!(n >= 2);
}

#[test]
fn child_inherits_parts_of_encoder() {
    let text = "encoder! { name: \"mine\"; like: \"gemma3\"; text { image, \"<end>\" } }";
    let arch = compile_file("mine.rs", text, &library()).unwrap().unwrap();
    let media = arch.media.unwrap();
    assert_eq!(media.text, [TextPart::Medium, TextPart::Text("<end>".to_owned())]);
    let image = media.image.unwrap();
    assert_eq!(
        (image.resize, image.block.unwrap().text.as_str()),
        ("Bilinear", "merge")
    );
    assert_eq!(arch.ancestors[0].file, "encoders/gemma3.rs");
    assert!(
        arch.fragments
            .iter()
            .all(|file| file.starts_with("encoders/fragments/"))
    );
}

#[test]
fn language_models_declare_their_use_of_media() {
    let archs = arch_lang::Directory(library().0);
    let used = |name: &str| {
        let text = std::fs::read_to_string(archs.0.join(format!("{name}.rs"))).unwrap();
        compile_file(name, &text, &archs).unwrap().unwrap().media_use
    };
    let found = ["llama", "qwen35", "gemma3", "gpt2", "olmo2"].map(used);
    let expected = [
        MediaUse::Causal,
        MediaUse::Causal,
        MediaUse::Whole,
        MediaUse::None,
        MediaUse::None,
    ];
    assert_eq!(found, expected);
}

#[test]
fn mistakes_have_one_message_at_their_tokens() {
    assert_eq!(messages("base", "base"), [""; 0]);
    let cases = [
        (
            "of: image;",
            "of: sound;",
            "sound: expected `image` or `audio`, found `sound`",
        ),
        (
            "of: image;",
            "rope: neox;",
            "rope: expected `name`, `of`, `like`, `hparams`, `image`, `audio`, `tiles`, `text`, `tensors`, `graph`, `test`, or `fn`, found `rope`",
        ),
        (
            "resize: bicubic;",
            "resize: cubic;",
            "cubic: expected `bilinear`, `bicubic`, or `lanczos`, found `cubic`",
        ),
        ("resize: bicubic;", "", "image: `image` needs `resize: bilinear;`"),
        (
            "fixed(image_size)",
            "square(image_size)",
            "square: expected `fixed(…)`, `padded(…)`, `contained(…)`, `area(…)`, `longest(…)`, `within(…, rows = …)`, `fitting(…, rows = …)`, `closest(…, rows = …)`, `stepped(…, rows = …)`, `bordered(…, rows = …)`, `extended(…, rows = …)`, or `multiple(…, rows = …)`, found `square`",
        ),
        (
            "\"<start>\", image",
            "\"<start>\"",
            "text: `text` must contain `image` once, where its rows are placed; found 0",
        ),
        (
            "\"<start>\", image",
            "\"<{index}>\", image",
            "\"<{index}>\": expected `{number}`, found `{index}`",
        ),
        (
            " in blocks(merge)",
            "",
            "merge * merge: `group_rows` needs a multiple of merge * merge columns, found T; see `blocks` in `image`",
        ),
        (
            "fc(merge(group_rows(x, merge * merge)))",
            "merge(group_rows(x, merge * merge))",
            "merge(group_rows(x, merge * merge)): the result must be [n_out, rows], found",
        ),
        (
            "position_embd[positions]",
            "position_embd[tokens]",
            "tokens: an encoder has no tokens, so `tokens` is not available",
        ),
        (
            "[n_embd, 64]",
            "[n_embd, n_vocab]",
            "n_vocab: an encoder has no tokens, so `n_vocab` is not available",
        ),
        (
            "let x = patch_embd(patches)",
            "let x = with_media(patch_embd(patches))",
            "with_media: `with_media` is for language models, not for encoders",
        ),
    ];
    check_messages(&cases);
}

#[test]
fn mistakes_in_images_and_their_operations_have_messages() {
    check_messages(&[
        (
            "fixed(image_size)",
            "multiple(14 * merge, rows = 4)",
            "4: expected a range, such as `4..1024`",
        ),
        (
            "fixed(image_size)",
            "longest(image_size, merge * patches)",
            "patches: `patches` is only available in the graph",
        ),
        (
            "fixed(image_size)",
            "multiple(14 * merge, tokens = 4..9)",
            "tokens: expected `rows = …`, found `tokens`",
        ),
        (
            "blocks(merge);",
            "blocks(merge) over windows(4);",
            "over: expected `of windows(…)` or `of blocks(…)`, found `over`",
        ),
        (
            "blocks(merge);",
            "blocks(merge) of squares(4);",
            "squares: expected `windows(…)`, found `squares`",
        ),
        ("fixed(image_size)", "area(image_size)", "): expected `,`"),
        (
            "merge(group_rows(x, merge * merge))",
            "merge(group_rows(full_attention(x, x, x), merge * merge))",
            "x: `full_attention` expects `q` of shape [d, n, T], found [n_embd, T]",
        ),
        (
            "blocks(merge);",
            "blocks(merge); positions: grid;",
            "grid: expected `sequence`, `axes`, or `xd`, found `grid`",
        ),
        (
            "x += up(x)",
            "x = beside(x, up(x))",
            "up(x): `beside` expects `y` of shape [n_out, rows], found [n_embd, T]",
        ),
        (
            "x += up(x)",
            "x += up(rope_grid(x, 10000.0))",
            "x: `rope_grid` expects `x` of shape [d, n, T], found [n_embd, T]; see `heads`",
        ),
        (
            "x += up(x)",
            "x += up(deepstack(x))",
            "deepstack: `deepstack` is for language models, not for encoders",
        ),
    ]);
}

#[test]
fn mistakes_in_tiles_have_messages() {
    let tiles = |facts: &str| format!("tiles {{ {facts} }}\n    text {{ \"<start>\"");
    let cases = [
        ("above: 2;", "tiles: `tiles` needs `grid: ratio(side, tiles = 1..12);`"),
        (
            "grid: square(448);",
            "square: expected `ratio(…, tiles = …)`, `lines(…, tiles = …, end = …)`, `area(…, tiles = …)`, `longest(…)`, `windows(…)`, `canvas(…, tiles = …)`, or `listed(…, newline = …)`, found \
             `square`",
        ),
        (
            "grid: ratio(448, rows = 1..12);",
            "rows: expected `tiles = …`, found `rows`",
        ),
        (
            "grid: ratio(448, tiles = 12);",
            "12: expected a range, such as `4..1024`",
        ),
        (
            "grid: longest(448, 896); grid: longest(448, 896);",
            "grid: `grid` is given twice",
        ),
        (
            "grid: longest(448, 896); rows: \"\";",
            "rows: expected `grid`, `above`, `tile`, `between`, `between_rows`, `overview`, `whole`, found `rows`",
        ),
        (
            "grid: longest(448, 896); tile: \"<{row}_{col}>\";",
            "\"<{row}_{col}>\": expected `{row}` or `{column}`, found `{col}`",
        ),
        (
            "grid: longest(448, 896); tile: \"<{row\";",
            "\"<{row\": `{row` has no `}`; expected `{row}` or `{column}`",
        ),
        (
            "grid: listed(448, \"sizes\", newline = \"mm.newline\");",
            "\"mm.newline\": expected the name of a tensor of shape [n_out] in `tensors`",
        ),
        (
            "grid: area(448, 56, rows = 9);",
            "rows: expected `tiles = …`, found `rows`",
        ),
        (
            "grid: longest(448, 896); tile: \"<a>\", tile, \"</a>\";",
            "tile: expected `image`, found `tile`",
        ),
        (
            "grid: longest(448, 896); tile: \"<a>\", image, \"</{line}>\";",
            "\"</{line}>\": expected `{row}` or `{column}`, found `{line}`",
        ),
        (
            "grid: longest(448, 896); overview: middle \"\";",
            "middle: expected `first` or `last`, found `middle`",
        ),
    ];
    for (facts, expected) in cases {
        let found = messages("text { \"<start>\"", &tiles(facts));
        assert_eq!(found, [expected], "{facts}");
    }
}

#[test]
fn declaration_describes_tiles() {
    let tiles = |grid: &str| {
        let facts =
            format!("grid: {grid}; above: 2; tile: \"<{{row}}_{{column}}>\"; between: \"-\"; between_rows: \"|\";");
        let text = format!(
            "tiles {{ {facts} overview: last \"<all>\"; whole: \"<one>\", image, \"</one>\"; }}\n    text {{ \"<start>\""
        );
        let text = BASE.replacen("text { \"<start>\"", &text, 1);
        let newline = "tensors { newline: raw \"mm.newline\" [n_out];";
        let text = if grid.starts_with("listed") {
            text.replacen("tensors {", newline, 1)
        } else {
            text
        };
        let arch = compile_file("my.rs", &text, &library()).unwrap().unwrap();
        arch.media.unwrap().image.unwrap().tiles.unwrap()
    };
    let ratio = tiles("ratio(image_size, tiles = 2..merge * 5)");
    let TileGrid::Ratio { side, min, max } = ratio.grid else {
        panic!("{:?}", ratio.grid);
    };
    assert_eq!([side, min, max].map(|s| s.text), ["image_size", "2", "merge * 5"]);
    let longest = tiles("longest(image_size, 896)");
    let TileGrid::Longest { side, longest: limit } = longest.grid else {
        panic!("{:?}", longest.grid);
    };
    assert_eq!([side, limit].map(|s| s.text), ["image_size", "896"]);
    assert_eq!(longest.above.unwrap().text, "2");
    assert_eq!(longest.overview, Some((false, ["<all>", ""].map(str::to_owned))));
    assert_eq!([longest.between, longest.between_rows], ["-", "|"]);
    assert_eq!(
        [longest.tile, longest.whole],
        [["<{row}_{column}>", ""], ["<one>", "</one>"]]
    );
    let area = tiles("area(image_size, 14 * merge, tiles = 9)");
    let TileGrid::Area { side, unit, max } = area.grid else {
        panic!("{:?}", area.grid);
    };
    assert_eq!([side, unit, max].map(|s| s.text), ["image_size", "14 * merge", "9"]);
    let windows = tiles("windows(14 * merge, image_size, 3024)");
    let TileGrid::Windows { side, whole, longest } = windows.grid else {
        panic!("{:?}", windows.grid);
    };
    assert_eq!(
        [side, whole, longest].map(|s| s.text),
        ["14 * merge", "image_size", "3024"]
    );
    let canvas = tiles("canvas(image_size, tiles = merge * 8)");
    let TileGrid::Canvas { side, max } = canvas.grid else {
        panic!("{:?}", canvas.grid);
    };
    assert_eq!([side, max].map(|s| s.text), ["image_size", "merge * 8"]);
    let listed = tiles("listed(image_size, \"sizes\", newline = \"mm.newline\")");
    let TileGrid::Listed {
        side,
        key,
        newline,
        widths_first: false,
    } = listed.grid
    else {
        panic!("{:?}", listed.grid);
    };
    assert_eq!(
        (side.text.as_str(), key.as_str(), newline.as_str()),
        ("image_size", "sizes", "mm.newline")
    );
    let listed = tiles("listed(image_size, \"sizes\", newline = \"mm.newline\", widths_first)");
    assert!(matches!(listed.grid, TileGrid::Listed { widths_first: true, .. }));
}

#[test]
fn declaration_describes_tiles_in_lines() {
    let grid = "grid: lines(448, tiles = 2..9, newline = \"mm.newline\", end = \"mm.end\");";
    let (newline, end) = ("newline: raw \"mm.newline\" [n_out];", "end: raw \"mm.end\" [n_out];");
    let compiled = |grid: &str| {
        let newline = if grid.contains("newline") { newline } else { "" };
        let rows = format!("tensors {{ {newline} {end}");
        let tiles = format!("tiles {{ {grid} overview: last \"\"; }}\n    text {{ \"<start>\"");
        let text = BASE
            .replacen("text { \"<start>\"", &tiles, 1)
            .replacen("tensors {", &rows, 1);
        let arch = compile_file("my.rs", &text, &library())?.unwrap();
        Ok::<_, Vec<Diagnostic>>(arch.media.unwrap().image.unwrap().tiles.unwrap().grid)
    };
    let TileGrid::Lines {
        side,
        min,
        max,
        newline,
        end,
    } = compiled(grid).unwrap()
    else {
        panic!("expected `Lines`");
    };
    assert_eq!([side, min, max].map(|s| s.text), ["448", "2", "9"]);
    assert_eq!((newline.as_deref(), end.as_str()), (Some("mm.newline"), "mm.end"));
    let in_turn = compiled(&grid.replace("newline = \"mm.newline\", ", "")).unwrap();
    assert!(matches!(in_turn, TileGrid::Lines { newline: None, .. }));
    assert!(compiled(&grid.replace("mm.end", "mm.none")).is_err());
}

#[test]
fn declaration_describes_each_size() {
    let size = |size: &str| {
        let text = BASE.replacen("fixed(image_size)", size, 1);
        let arch = compile_file("my.rs", &text, &library()).unwrap().unwrap();
        arch.media.unwrap().image.unwrap().size
    };
    assert!(matches!(size("padded(image_size)"), ImageSize::Padded(side) if side.text == "image_size"));
    for (least, text) in [
        (None, "contained(image_size)"),
        (Some("14"), "contained(image_size, min = 14)"),
    ] {
        let ImageSize::Contained { side, least: found } = size(text) else {
            panic!("expected `Contained`");
        };
        assert_eq!(
            (&side.text[..], found.map(|n| n.text)),
            ("image_size", least.map(str::to_owned))
        );
    }
    let ImageSize::Area { side, unit } = size("area(image_size, 14 * merge)") else {
        panic!("expected `Area`");
    };
    assert_eq!([side, unit].map(|s| s.text), ["image_size", "14 * merge"]);
    let ImageSize::Longest { side, unit } = size("longest(image_size, 14 * merge)") else {
        panic!("expected `Longest`");
    };
    assert_eq!([side, unit].map(|s| s.text), ["image_size", "14 * merge"]);
    let ImageSize::Fitting { unit, min, max } = size("fitting(14, rows = merge..image_size)") else {
        panic!("expected `Fitting`");
    };
    assert_eq!([unit, min, max].map(|s| s.text), ["14", "merge", "image_size"]);
    let ImageSize::Closest { unit, max } = size("closest(14 * merge, rows = image_size)") else {
        panic!("expected `Closest`");
    };
    assert_eq!([unit, max].map(|s| s.text), ["14 * merge", "image_size"]);
    let ImageSize::Stepped { unit, max } = size("stepped(14 * merge, rows = image_size)") else {
        panic!("expected `Stepped`");
    };
    assert_eq!([unit, max].map(|s| s.text), ["14 * merge", "image_size"]);
    let ImageSize::Extended { unit, min, max } = size("extended(14, rows = merge..image_size)") else {
        panic!("expected `Extended`");
    };
    assert_eq!([unit, min, max].map(|s| s.text), ["14", "merge", "image_size"]);
    let ImageSize::Within { unit, max } = size("within(14 * merge, rows = image_size)") else {
        panic!("expected `Within`");
    };
    assert_eq!([unit, max].map(|s| s.text), ["14 * merge", "image_size"]);
    let ImageSize::Bordered { unit, max } = size("bordered(14 * merge, rows = image_size)") else {
        panic!("expected `Bordered`");
    };
    assert_eq!([unit, max].map(|s| s.text), ["14 * merge", "image_size"]);
}

/// Checks the message of each case: a part of [`BASE`], its replacement, and the start of the message.
fn check_messages(cases: &[(&str, &str, &str)]) {
    for (part, instead, expected) in cases {
        let found = messages(part, instead);
        assert!(
            found.iter().any(|message| message.starts_with(expected)),
            "{instead}: {found:?}"
        );
    }
}

#[test]
fn declaration_describes_images_of_any_size() {
    let size = "multiple(14 * merge, rows = 4..1024)";
    let text = BASE.replacen("fixed(image_size)", size, 1);
    let text = text.replacen("image_size: usize = \"image_size\";", "", 1);
    let text = text.replacen("image_size: 112, ", "", 1);
    let text = text.replacen("blocks(merge);", "blocks(merge) of windows(4); positions: axes;", 1);
    let arch = compile_file("my.rs", &text, &library()).unwrap().unwrap();
    let image = arch.media.unwrap().image.unwrap();
    let ImageSize::Multiple { unit, min, max } = image.size else {
        panic!("{:?}", image.size);
    };
    let texts = [unit, min, max, image.window.unwrap()].map(|scalar| scalar.text);
    assert_eq!(texts, ["14 * merge", "4", "1024", "4"]);
    assert_eq!(image.positions, "Axes");
}

#[test]
fn operations_on_grids_are_only_available_in_encoders() {
    let text = std::fs::read_to_string(library().0.join("gpt2.rs")).unwrap();
    let text = text.replacen(
        "token_embd[tokens]",
        "beside(token_embd[tokens], token_embd[tokens])",
        1,
    );
    let faults = compile_file("gpt2.rs", &text, &arch_lang::Directory(library().0)).unwrap_err();
    assert!(
        faults.iter().any(|fault| common::shown(fault).contains("beside")),
        "{faults:?}"
    );
}

/// A side that contains `patches` once made the width of `patches` depend on itself.
#[test]
fn unprojected_inputs_have_one_message() {
    for side in ["patches", "patches * patches", "(14 + patches) * patches"] {
        let found = messages("patches: 14 in", &format!("patches: {side} in"));
        assert!(
            found.len() <= 2 && found[0].contains("`patches` is only available in the graph"),
            "{found:?}"
        );
    }
    for (part, instead) in [("whisper(n_mel)", "whisper(frames)"), ("frames: 5", "frames: frames")] {
        let found = audio_messages(part, instead);
        assert!(found[0].contains("`frames` is only available"), "{found:?}");
    }
}

#[test]
fn repeated_widths_of_inputs_are_bounded() {
    let side = vec!["14"; 150].join(" - ");
    let uses = "let x = x + patch_embd(patches);\n".repeat(200);
    let text = BASE.replace("patches: 14 in", &format!("patches: {side} in"));
    let text = text.replace("for layer {", &format!("{uses}for layer {{"));
    let faults = compile_file("my.rs", &text, &library()).unwrap_err();
    assert!(
        faults.iter().any(|f| f.message.contains("expand to more than")),
        "{faults:.1000?}"
    );
}

#[test]
fn patches_are_only_available_in_encoders() {
    let text = std::fs::read_to_string(library().0.join("gpt2.rs")).unwrap();
    let text = text.replacen("token_embd[tokens]", "patches", 1);
    let faults = compile_file("gpt2.rs", &text, &arch_lang::Directory(library().0)).unwrap_err();
    let shown: Vec<_> = faults.iter().map(common::shown).collect();
    assert!(
        shown
            .iter()
            .any(|m| m == "patches: `patches` is only available in `encoder!`"),
        "{shown:?}"
    );
}

/// A loop over a group of one layer runs once, so the shape of its value may change.
#[test]
fn single_layers_may_change_shapes() {
    let with = |count: &str, body: &str| {
        let tensors =
            format!(r#"layer first "v.first" {count} {{ wide: linear "wide" [n_embd -> 2 * n_embd]; }} layer {{"#);
        let text = BASE.replacen("layer {", &tensors, 1);
        let text = text.replacen("[n_embd * merge", "[2 * n_embd * merge", 1);
        let text = text.replacen("fc(merge(", &format!("for first {{ {body} }} fc(merge("), 1);
        let faults = compile_file("my.rs", &text, &library()).err().unwrap_or_default();
        faults.iter().map(common::shown).collect::<Vec<_>>()
    };
    assert_eq!(with("1", "x = wide(x);"), Vec::<String>::new());
    let message = "cannot assign to `x`: its shape is [n_embd, T], found [2 * n_embd, T]";
    for (count, body) in [
        ("merge", "x = wide(x);"),
        ("1", "if merge > 2 { x = wide(x); }"),
        ("1", "for _ in 0..merge { x = wide(x); }"),
    ] {
        let found = with(count, body);
        assert!(found.iter().any(|m| m.contains(message)), "{body}: {found:?}");
    }
}

/// Valid declaration of an audio encoder. Each case replaces one part.
const AUDIO: &str = r#"
encoder! {
    name: "sounds";
    of: audio;
    hparams {
        n_out: usize = "projection_dim";
        n_mel: usize = "num_mel_bins";
        n_pos: usize = "context_length" or 1500;
        stack: usize = "projector.stack_factor";
    }
    audio { rate: 16000; mel: whisper(n_mel); frames: 5 every 2; chunk: masked(n_pos); }
    text { audio, "<end>" }
    tensors {
        conv: linear "a.conv" [n_mel * 3 -> n_embd];
        position_embd: embed "a.position_embd" [n_embd, n_pos];
        fc: linear "mm.fc" [n_embd * stack -> n_out];
        layer { up: linear "ffn_up" [n_embd -> n_embd]; }
    }
    graph {
        let x = conv(interleave(frames[n_mel..n_mel * 4], 3)) * frames[n_mel * 5..n_mel * 5 + 1];
        let x = x + position_embd[positions];
        for layer { x += up(x); }
        fc(stack_rows(pool_rows(x, 2), stack))
    }
    test { n_embd: 64, n_head: 4, n_layer: 2, n_ff: 96, n_out: 64, n_mel: 8, stack: 2 }
}
"#;

/// Returns the messages for [`AUDIO`] with one part replaced.
fn audio_messages(part: &str, instead: &str) -> Vec<String> {
    assert!(AUDIO.contains(part), "{part}");
    let text = AUDIO.replacen(part, instead, 1);
    let faults = compile_file("my.rs", &text, &library()).err().unwrap_or_default();
    faults.iter().map(common::shown).collect()
}

#[test]
fn audio_is_declared_with_its_preprocessing() {
    let arch = compile_file("my.rs", AUDIO, &library()).unwrap().unwrap();
    let (audio, media) = (arch.audio.unwrap(), arch.media.unwrap());
    assert_eq!((audio.mel, audio.silence), ("Whisper", "Masked"));
    assert_eq!((audio.window.text.as_str(), audio.chunk.text.as_str()), ("5", "n_pos"));
    assert!(media.medium == Medium::Audio && media.image.is_none());
    assert_eq!(
        arch.graph.result.unwrap().shape.to_string(),
        "[n_out, (((T / 2) + stack - 1) / stack)]"
    );
}

#[test]
fn mistakes_in_audio_have_one_message_at_their_tokens() {
    let cases = [
        (
            "chunk: masked(n_pos);",
            "",
            "audio: `audio` needs `chunk: filled(n_pos);`",
        ),
        (
            "masked(n_pos)",
            "quiet(n_pos)",
            "quiet: expected `filled`, `masked`, `bare`, `cut`, `ended`, `trimmed`, or `whole`, found `quiet`",
        ),
        (
            "whisper(n_mel)",
            "mfcc(n_mel)",
            "mfcc: expected `whisper`, `normalized`, `gemma4`, `granite`, `conformer`, or `samples`, found `mfcc`",
        ),
        (
            "= \"projector.stack_factor\";",
            "= \"projector.stack_factor\" or file_rows(n_mel);",
            "file_rows: `file_rows` takes the name of a tensor in the file, in quotes",
        ),
        ("5 every 2", "5 each 2", "each: expected `every`, found `each`"),
        (
            "rate: 16000;",
            "hop: 160;",
            "hop: expected `rate`, `mel`, `frames`, `chunk`, found `hop`",
        ),
        (
            "text { audio,",
            "text { image,",
            "image: `image` is not the medium in `of: …;`",
        ),
        (
            "audio { rate: 16000; mel: whisper(n_mel); frames: 5 every 2; chunk: masked(n_pos); }",
            "",
            "the encoder has no `audio`; add `audio { rate: …; mel: …; frames: …; chunk: …; }`",
        ),
        (
            "text { audio,",
            "tiles { grid: longest(448, 896); } text { audio,",
            "tiles: `tiles` is for image encoders, not for audio encoders",
        ),
        (
            "text { audio,",
            "image { size: fixed(8); resize: bilinear; patches: 4; } text { audio,",
            "image: `image` is for image encoders, not for audio encoders",
        ),
        (
            "interleave(frames[n_mel..n_mel * 4], 3)",
            "interleave(frames[0..n_mel * 5], 3)",
            "3: `interleave` needs a multiple of 3 values, found 5 * n_mel",
        ),
        (
            "interleave(frames[n_mel..n_mel * 4], 3)",
            "conv_2d(heads(frames[0..n_mel], n_mel), conv)",
            "`conv_2d`: dimension 0 of `w` must be 9 (9 taps of dimension 0 of `x`)",
        ),
        (
            "interleave(frames[n_mel..n_mel * 4], 3)",
            "conv_2d(frames[0..n_mel], conv)",
            "`conv_2d` expects `x` of shape [c, F, T]",
        ),
    ];
    for (part, instead, expected) in cases {
        let found = audio_messages(part, instead);
        assert!(found.iter().any(|m| m.contains(expected)), "{instead}: {found:?}");
    }
}

#[test]
fn audio_in_pieces_is_declared_and_checked() {
    let frames = "frames: 5 every 2;";
    let pieces = AUDIO.replacen(frames, "frames: 5 every 2 in pieces(n_mel * 3);", 1);
    let arch = compile_file("my.rs", &pieces.replacen("masked(", "cut(", 1), &library());
    let audio = arch.unwrap().unwrap().audio.unwrap();
    assert_eq!(
        (audio.piece.unwrap().text.as_str(), audio.silence),
        ("n_mel * 3", "Cut")
    );
    let input = "interleave(frames[n_mel..n_mel * 4], 3)";
    let cases = [
        (
            frames,
            "frames: 5 every 2 in blocks(3);",
            "blocks: expected `pieces(…)`, found `blocks`",
        ),
        (
            input,
            "merge(conv_frames(heads(frames[0..n_mel * 5], 5), conv))",
            "`conv_frames`: dimension 0 of `w` must be 9 taps of each channel of `x`, found 3 * n_mel for n_mel values",
        ),
        (
            input,
            "conv_frames(frames[0..n_mel], conv)",
            "`conv_frames` expects `x` of shape [c * F, n, T]",
        ),
    ];
    for (part, instead, expected) in cases {
        let found = audio_messages(part, instead);
        assert!(found.iter().any(|m| m.contains(expected)), "{instead}: {found:?}");
    }
}

#[test]
fn frames_are_only_available_with_audio() {
    let text = std::fs::read_to_string(library().0.join("gpt2.rs")).unwrap();
    let text = text.replacen("token_embd[tokens]", "frames", 1);
    let faults = compile_file("gpt2.rs", &text, &arch_lang::Directory(library().0)).unwrap_err();
    let shown: Vec<_> = faults.iter().map(common::shown).collect();
    let expected = "frames: `frames` is only available in an encoder of a declaration with `audio { … }`";
    assert!(shown.iter().any(|m| m == expected), "{shown:?}");
}
