//! Sizes and tiles of images, against the published preprocessing. `tests/tools/record_media.py` made the recordings.

use engine::builder::{ClassColumn, Filter, ImageRules, ImageSize, RowPositions, TileGrid, TileRules};
use tests::data_dir;

#[test]
fn sizes_match_published_preprocessing() {
    let text = std::fs::read_to_string(data_dir().join("encoders/sizes.txt")).unwrap();
    let (mut n, mut n_beyond) = (0, 0);
    for line in text.lines() {
        let numbers: Vec<usize> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let [width, height, unit, min, max, to_width, to_height] = numbers[..] else {
            panic!("{line}");
        };
        let rules = ImageRules {
            size: ImageSize::Multiple { unit, min, max },
            resize: Filter::Bicubic,
            patch: unit / 2,
            block: 2,
            window: 0,
            positions: RowPositions::Axes,
            class: ClassColumn::None,
            between_rows: "",
            tiles: None,
        };
        let target = rules.target(width, height);
        // The published sizes exceed the maximum for close limits.
        if to_width / unit * (to_height / unit) > max {
            n_beyond += 1;
        } else {
            assert_eq!(target, (to_width > 0).then_some([to_width, to_height]), "{line}");
        }
        assert!(
            target.is_none_or(|[width, height]| rules.grid_of(width, height).is_some()),
            "{line}"
        );
        n += 1;
    }
    assert_eq!((n, n_beyond), (600, 25));
}

/// Sizes of Gemma 4, GLM 5, Kimi, MiniCPM-V, Muse Glimmer, Phi-4, Pixtral, and Youtu-VL, and grids of tiles of Idefics
/// 3, InternVL, LFM2-VL, Llama 4, MiniCPM-V, and Step3-VL.
#[test]
fn targets_and_tiles_match_published_preprocessing() {
    let text = std::fs::read_to_string(data_dir().join("encoders/targets.txt")).unwrap();
    let mut counts = [0; 13];
    for line in text.lines() {
        let (rule, numbers) = line.split_once(' ').unwrap();
        let numbers: Vec<usize> = numbers.split(' ').map(|word| word.parse().unwrap()).collect();
        let target = |size, [width, height]: [usize; 2]| plain_rules(size, 1, 1).target(width, height).unwrap();
        match (rule, &numbers[..]) {
            ("within", &[unit, max, width, height, ref expected @ ..]) => {
                counts[0] += 1;
                assert_eq!(
                    target(ImageSize::Within { unit, max }, [width, height]),
                    *expected,
                    "{line}"
                );
            }
            ("longest", &[side, unit, width, height, ref expected @ ..]) => {
                counts[1] += 1;
                let max = usize::MAX;
                assert_eq!(
                    target(ImageSize::Longest { side, unit, max }, [width, height]),
                    *expected,
                    "{line}"
                );
            }
            ("ratio", &[side, min, max, width, height, ref grid @ ..]) => {
                counts[2] += 1;
                check_split(line, TileGrid::Ratio { side, min, max }, [width, height], grid);
            }
            ("tiles", &[side, longest, width, height, ref grid @ ..]) => {
                counts[3] += 1;
                check_split(line, TileGrid::Longest { side, longest }, [width, height], grid);
            }
            ("stepped", &[unit, max, width, height, ref expected @ ..]) => {
                counts[12] += 1;
                let rules = plain_rules(ImageSize::Stepped { unit, max }, unit, 1);
                assert_eq!(rules.target(width, height).unwrap(), *expected, "{line}");
                assert!(rules.grid_of(expected[0], expected[1]).is_some(), "{line}");
            }
            _ => counts[check_newer_target(line, rule, &numbers)] += 1,
        }
    }
    assert_eq!(counts, [198; 13]);
}

/// Returns the rules of images of a size.
fn plain_rules(size: ImageSize, patch: usize, block: usize) -> ImageRules {
    ImageRules {
        size,
        resize: Filter::Bicubic,
        patch,
        block,
        window: 0,
        positions: RowPositions::Sequence,
        class: ClassColumn::None,
        between_rows: "",
        tiles: None,
    }
}

/// Checks a line of `targets.txt`, and returns the number of its rule.
fn check_newer_target(line: &str, rule: &str, numbers: &[usize]) -> usize {
    match (rule, numbers) {
        ("bordered", &[patch, area, width, height, ref expected @ ..]) => {
            let (unit, max) = (2 * patch, usize::MAX);
            let rules = plain_rules(ImageSize::Bordered { unit, area, max }, patch, 2);
            let sizes = [rules.scaled(width, height), rules.target(width, height)];
            assert_eq!(sizes.map(Option::unwrap).concat(), *expected, "{line}");
            assert!(rules.grid_of(expected[2], expected[3]).is_some(), "{line}");
            4
        }
        ("canvas", &[side, max, width, height, ref expected @ ..]) => {
            let split = tile_rules(TileGrid::Canvas { side, max })
                .split([width, height])
                .unwrap();
            let found = [[split.columns, split.rows], split.scaled].concat();
            assert_eq!(found, *expected, "{line}");
            5
        }
        ("area", &[side, unit, width, height, ref expected @ ..]) => {
            let max = usize::MAX;
            let rules = plain_rules(ImageSize::Area { side, unit, max }, unit, 1);
            assert_eq!(rules.target(width, height).unwrap(), *expected, "{line}");
            assert!(rules.grid_of(expected[0], expected[1]).is_some(), "{line}");
            6
        }
        ("slices", &[side, unit, max, width, height, ref expected @ ..]) => {
            let split = tile_rules(TileGrid::Area { side, unit, max }).split([width, height]);
            let found = split.map(|split| [[split.columns, split.rows], split.scaled].concat());
            assert_eq!(found.unwrap_or_default(), *expected, "{line}");
            7
        }
        ("fitting", &[unit, min, max, width, height, ref expected @ ..]) => {
            let rules = plain_rules(ImageSize::Fitting { unit, min, max }, unit, 1);
            assert_eq!(rules.target(width, height).unwrap(), *expected, "{line}");
            assert!(rules.grid_of(expected[0], expected[1]).is_some(), "{line}");
            8
        }
        ("closest", &[unit, max, width, height, ref expected @ ..]) => {
            let rules = plain_rules(ImageSize::Closest { unit, max }, unit, 1);
            let target = rules.target(width, height).unwrap();
            // The published sizes of narrow images exceed the maximum.
            if expected[0] / unit * (expected[1] / unit) <= max {
                assert_eq!(target, *expected, "{line}");
            }
            assert!(rules.grid_of(target[0], target[1]).is_some(), "{line}");
            9
        }
        ("extended", &[unit, min, max, width, height, ref expected @ ..]) => {
            let rules = plain_rules(ImageSize::Extended { unit, min, max }, unit, 1);
            let sizes = [rules.scaled(width, height), rules.target(width, height)];
            assert_eq!(sizes.map(Option::unwrap).concat(), *expected, "{line}");
            assert!(rules.grid_of(expected[2], expected[3]).is_some(), "{line}");
            10
        }
        ("windows", &[side, whole, longest, width, height, ref expected @ ..]) => {
            let rules = tile_rules(TileGrid::Windows { side, whole, longest });
            let split = rules.split([width, height]);
            let found = split.map(|split| [[split.columns, split.rows], split.scaled, split.cut].concat());
            assert_eq!(found.unwrap_or_default(), *expected, "{line}");
            assert!(
                expected.first().map_or(1, |columns| columns * expected[1]) <= rules.max_tiles(),
                "{line}"
            );
            11
        }
        _ => panic!("{line}"),
    }
}

fn tile_rules(grid: TileGrid) -> TileRules {
    TileRules {
        grid,
        above: 0.0,
        tile: [""; 2],
        between: "",
        between_rows: "",
        overview: None,
        whole: [""; 2],
    }
}

/// Compares the grid of an image with its recorded columns and rows.
fn check_split(line: &str, grid: TileGrid, image: [usize; 2], expected: &[usize]) {
    let [columns, rows] = expected[..] else {
        panic!("{line}");
    };
    let expected = (columns * rows > 1).then_some([columns, rows]);
    let split = tile_rules(grid).split(image).map(|split| [split.columns, split.rows]);
    assert_eq!(split, expected, "{line}");
}
