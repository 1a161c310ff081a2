//! Tables of plain text, with columns as wide as `kubectl get` makes them.

/// The spaces between two columns.
const GAP: usize = 3;

/// A header and rows, aligned; the last column is not padded. Rows have as many cells as the header.
#[must_use]
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |text: &str| text.chars().count();
    let mut widths: Vec<usize> = header.iter().map(|cell| width(cell)).collect();
    for row in rows {
        for (cell, widest) in row.iter().zip(&mut widths) {
            *widest = (*widest).max(width(cell));
        }
    }
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, widest) in cells.zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', widest - width(cell) + GAP));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&mut header.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["a".to_owned(), "123456".to_owned(), "x".to_owned()],
            vec!["longer".to_owned(), String::new(), String::new()],
        ];
        assert_eq!(
            table(&["NAME", "N", "LAST"], &rows),
            "NAME     N        LAST\na        123456   x\nlonger\n"
        );
    }
}
