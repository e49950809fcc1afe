//! Tables for people: columns, nothing else.

use comfy_table::{ContentArrangement, presets};

use super::harmless;

/// Rows under a heading.
pub(crate) struct Table {
    table: comfy_table::Table,
}

impl Table {
    /// A table without rows.
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Self {
        let mut table = comfy_table::Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(heading);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        Self { table }
    }

    /// Adds a row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.table
            .add_row(cells.iter().map(|cell| harmless(cell).into_owned()));
    }

    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        for line in self.table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_do_not_trail() {
        let mut table = Table::new(["NAME", "STATE"]);
        table.row(["a".into(), "running".into()]);
        table.row(["long-name".into(), "\x1b[31mred".into()]);
        assert_eq!(
            table.render(),
            "NAME       STATE\na          running\nlong-name  \\u{1b}[31mred\n"
        );
    }
}
