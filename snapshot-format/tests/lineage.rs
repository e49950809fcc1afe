//! Generations and their names, and what is said when there is none.

use snapshot_format::*;

fn entry(id: CheckpointId, parent: Option<CheckpointId>) -> LineageEntry {
    LineageEntry {
        id,
        parent,
        taken: WallTime::default(),
        machine: "worker".into(),
        message: String::new(),
        data_bytes: 0,
        autosave: false,
    }
}

/// Three points: two share ten digits.
fn three() -> [CheckpointId; 3] {
    let mut similar = [0x6b; 32];
    similar[5] = 0x3e;
    [
        CheckpointId([0x6b; 32]),
        CheckpointId(similar),
        CheckpointId([0x58; 32]),
    ]
}

fn lineage(ids: &[CheckpointId]) -> Lineage {
    let parents = ids.iter().skip(1).copied().map(Some).chain([None]);
    Lineage::new(
        ids.iter()
            .copied()
            .zip(parents)
            .map(|(id, parent)| entry(id, parent)),
    )
    .unwrap()
}

#[test]
fn generations_are_named_by_number_id_and_prefix() {
    let ids = three();
    let lineage = lineage(&ids);
    for (text, expected) in [
        ("~0", ids[0]),
        ("~2", ids[2]),
        ("58585858", ids[2]),
        ("6b6b6b6b6b6", ids[0]),
        ("6B6B6B6B6B3E", ids[1]),
        (ids[1].to_string().as_str(), ids[1]),
    ] {
        assert_eq!(
            lineage.resolve(text).map(|found| found.id),
            Ok(expected),
            "{text}"
        );
    }
    assert_eq!(lineage.generation_of(&ids[2]), Some(2));
    assert_eq!(lineage.generation_of(&CheckpointId([1; 32])), None);
}

#[test]
fn errors_name_what_was_asked_and_what_there_is() {
    let ids = three();
    let all = lineage(&ids);
    let one = lineage(&ids[..1]);
    let text = |lineage: &Lineage, asked| lineage.resolve(asked).unwrap_err().to_string();
    assert_eq!(
        text(&all, "~3"),
        "there is no generation ~3: there are ~0 to ~2"
    );
    assert_eq!(
        text(&one, "~1"),
        "there is no generation ~1: there is only ~0"
    );
    let huge = "~99999999999999999999999";
    assert_eq!(
        text(&all, huge),
        format!("there is no generation {huge}: there are ~0 to ~2")
    );
    assert_eq!(
        text(&all, "6b6b6b6b"),
        "6b6b6b6b names 2 generations: 6b6b6b6b6b6b, 6b6b6b6b6b3e; give more digits"
    );
    assert_eq!(
        text(&one, "01234567"),
        "no generation has an id that begins with 01234567: there is only 6b6b6b6b6b6b"
    );
    for spelling in [
        "",
        "~",
        "~-1",
        "~+1",
        "~1 ",
        "latest",
        "6b6b6b6",
        "0x6b6b6b6b",
    ] {
        assert!(
            matches!(all.resolve(spelling), Err(ResolveError::Spelling { .. })),
            "{spelling:?}"
        );
    }
    assert!(text(&all, "a\u{1b}[2J").starts_with(r#""a\u{1b}[2J" names no generation"#));
}

#[test]
fn ids_that_differ_late_are_shown_that_long_and_many_are_counted() {
    let ids: Vec<CheckpointId> = (0..12)
        .map(|n| {
            let mut id = [0xaa; 32];
            id[7] = n;
            CheckpointId(id)
        })
        .collect();
    let error = lineage(&ids).resolve("aaaaaaaa").unwrap_err().to_string();
    assert!(
        error.starts_with("aaaaaaaa names 12 generations: aaaaaaaaaaaaaa00, "),
        "{error}"
    );
    assert!(
        error.ends_with("aaaaaaaaaaaaaa07 and 4 more; give more digits"),
        "{error}"
    );
}

#[test]
fn a_lineage_has_points_and_each_once() {
    let ids = three();
    assert_eq!(Lineage::new([]), Err(LineageError::Empty));
    let twice = [entry(ids[0], None), entry(ids[0], None)];
    assert_eq!(
        Lineage::new(twice),
        Err(LineageError::Duplicate { id: ids[0] })
    );
}

#[test]
fn entries_of_points_say_what_their_records_say() {
    let record = PointRecord {
        machine: "worker".into(),
        message: "before migrate".into(),
        parent: Some(CheckpointId([9; 32])),
        taken: WallTime::new(5, 6).unwrap(),
        data_bytes: 77,
        ..PointRecord::default()
    };
    let (point, _) = Point::seal(record).unwrap();
    let entry = LineageEntry::from(&point);
    assert_eq!(entry.id, point.id());
    assert_eq!(entry.parent, Some(CheckpointId([9; 32])));
    assert_eq!((entry.taken.seconds, entry.taken.nanos), (5, 6));
    assert_eq!(
        (entry.machine.as_str(), entry.message.as_str()),
        ("worker", "before migrate")
    );
    assert_eq!(entry.data_bytes, 77);
}

#[test]
fn lines_that_are_none_are_refused() {
    let id = CheckpointId([1; 32]);
    let from = |line: &str| LineageEntry::from_line(id, line);
    assert_eq!(from(""), Err(LineError::NotALine));
    assert_eq!(from("point2 00"), Err(LineError::NotALine));
    assert_eq!(from("point1 0"), Err(LineError::NotHex));
    assert_eq!(from("point1 zz"), Err(LineError::NotHex));
    assert!(matches!(from("point1 00"), Err(LineError::Fields(_))));
    assert_eq!(
        from(&format!("point1 {}", "00".repeat(9000))),
        Err(LineError::NotALine)
    );
}
