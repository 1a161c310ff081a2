//! Request targets that are too long: they are answered with 414 like any other refused request.
//!
//! The HTTP libraries cannot represent a target above 64 KiB. Over HTTP/1.1 they answer 414 without a body, which
//! [`response`] replaces. Over HTTP/2 they reset the stream and count it as an error of the connection, so [`Shortener`]
//! replaces the target in the frames by the shortest one that is still refused.

use bytes::Bytes;
use http::header;

use crate::error::ApiError;

/// The longest request target that is accepted, path and query, in bytes.
pub const TARGET_BYTES: usize = 65_533;
/// The longest one that the libraries can represent.
const LIBRARY_BYTES: usize = TARGET_BYTES + 1;
/// Header blocks above this size are not inspected; the library refuses them.
const BLOCK_BYTES: usize = 2 * 1024 * 1024;
/// How the frames of a changed header block are cut: any peer accepts this size.
const FRAME_BYTES: usize = 16 * 1024;

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// How the HTTP/1.1 library's own answer to a target that is too long begins.
const LIBRARY_RESPONSE: &[u8] = b"HTTP/1.1 414 ";

/// The response that replaces what the HTTP/1.1 library writes of its own accord, if it is its 414.
pub(super) fn response(written: &[u8]) -> Option<Bytes> {
    written.starts_with(LIBRARY_RESPONSE).then(|| {
        let response = ApiError::target_too_long(TARGET_BYTES).into_response();
        let body: Vec<u8> = response.body().buffers().flatten().copied().collect();
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let head = format!(
            "HTTP/1.1 414 URI Too Long\r\nconnection: close\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        [head.into_bytes(), body].concat().into()
    })
}

/// Passes on the bytes of an HTTP/2 client, with long targets shortened. Only header blocks of several frames can have one,
/// and only they are held back until they are complete.
#[derive(Debug)]
pub(super) struct Shortener {
    state: State,
    head: Vec<u8>,
    /// The frames of an incomplete header block.
    block: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// In the head of a frame.
    Head,
    /// So many bytes are passed on: the preface, or the payload of a frame.
    Passed(usize),
    /// So many bytes of a header block are left in its current frame, which may be the last.
    Held(usize, bool),
    /// The client breaks the protocol, which the library will notice.
    Broken,
}

impl Shortener {
    pub(super) fn new() -> Self {
        Self {
            state: State::Passed(PREFACE_BYTES),
            head: Vec::with_capacity(HEAD_BYTES),
            block: Vec::new(),
        }
    }

    /// Appends to `output` what can be passed on of all that was received so far.
    pub(super) fn pass(&mut self, mut bytes: &[u8], output: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let wanted = match self.state {
                State::Head => HEAD_BYTES - self.head.len(),
                State::Passed(left) | State::Held(left, _) => left,
                State::Broken => bytes.len(),
            };
            let (now, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            match self.state {
                State::Head => {
                    self.head.extend_from_slice(now);
                    if self.head.len() == HEAD_BYTES {
                        self.state = self.begin(output);
                    }
                }
                State::Passed(left) => {
                    output.extend_from_slice(now);
                    self.state = State::Passed(left - now.len());
                }
                State::Held(left, is_last) => {
                    self.block.extend_from_slice(now);
                    self.state = State::Held(left - now.len(), is_last);
                }
                State::Broken => output.extend_from_slice(now),
            }
            match self.state {
                State::Passed(0) => self.state = State::Head,
                State::Held(0, is_last) => {
                    if is_last {
                        let block = std::mem::take(&mut self.block);
                        output.extend(shortened(&block).as_deref().unwrap_or(&block));
                    }
                    self.state = State::Head;
                }
                _ => {}
            }
            if self.block.len() > BLOCK_BYTES {
                self.give_up(output);
            }
        }
    }

    /// What follows a complete frame head.
    fn begin(&mut self, output: &mut Vec<u8>) -> State {
        let head = std::mem::take(&mut self.head);
        let &[one, two, three, kind, flags, ..] = &*head else {
            return State::Broken;
        };
        let length = usize::from(one) << 16 | usize::from(two) << 8 | usize::from(three);
        let is_last = flags & END_HEADERS != 0;
        match (kind, self.block.is_empty()) {
            (HEADERS, true) if !is_last => {}
            (CONTINUATION, false) => {}
            (_, true) => {
                output.extend(head);
                return State::Passed(length);
            }
            (_, false) => {
                self.block.extend(head);
                self.give_up(output);
                return State::Broken;
            }
        }
        self.block.extend(head);
        State::Held(length, is_last)
    }

    fn give_up(&mut self, output: &mut Vec<u8>) {
        output.append(&mut self.block);
        self.state = State::Broken;
    }
}

/// The frames of a header block with another target, if its own is too long.
fn shortened(frames: &[u8]) -> Option<Vec<u8>> {
    let mut stream = [0; 4];
    let (mut flags, mut block, mut rest) = (0, Vec::new(), frames);
    while let Some((head, after)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let [one, two, three, kind, its_flags, stream_bytes @ ..] = *head;
        let length = usize::from(one) << 16 | usize::from(two) << 8 | usize::from(three);
        let (mut payload, next) = after.split_at_checked(length)?;
        rest = next;
        if kind == HEADERS {
            (flags, stream) = (its_flags, stream_bytes);
            if flags & PADDED != 0 {
                let (padding, padded) = payload.split_first()?;
                payload = padded.get(..padded.len().checked_sub(usize::from(*padding))?)?;
            }
            if flags & PRIORITY != 0 {
                payload = payload.get(5..)?;
            }
        }
        block.extend_from_slice(payload);
    }
    let block = with_short_target(&block)?;
    let chunks = block.chunks(FRAME_BYTES).collect::<Vec<_>>();
    let mut changed = Vec::with_capacity(block.len() + chunks.len() * HEAD_BYTES);
    for (at, chunk) in chunks.iter().enumerate() {
        let [_, length @ ..] = u32::try_from(chunk.len()).ok()?.to_be_bytes();
        let kind = if at == 0 { HEADERS } else { CONTINUATION };
        let last = if at + 1 == chunks.len() { END_HEADERS } else { 0 };
        let end = if at == 0 { flags & END_STREAM } else { 0 };
        changed.extend(length);
        changed.extend([kind, last | end]);
        changed.extend(stream);
        changed.extend_from_slice(chunk);
    }
    Some(changed)
}

/// The header block (HPACK, RFC 7541) with another target, if its own is too long. The decoder's table stays the same: an
/// entry above its size empties it, and both targets are.
fn with_short_target(block: &[u8]) -> Option<Vec<u8>> {
    let mut rest = block;
    while let Some(&first) = rest.first() {
        let prefix = match first {
            0x80.. | 0x20..0x40 => {
                // A field of a table, or the table's size.
                integer(&mut rest, if first >= 0x80 { 7 } else { 5 })?;
                continue;
            }
            0x40..0x80 => 6,
            0..0x20 => 4,
        };
        // The static table has `:path` twice.
        let is_target = match integer(&mut rest, prefix)? {
            0 => string(&mut rest)?.is(b":path"),
            index => index == 4 || index == 5,
        };
        let before = block.len() - rest.len();
        let value = string(&mut rest)?;
        if is_target && value.length() > LIBRARY_BYTES {
            let mut changed = block.get(..before)?.to_vec();
            write_length(&mut changed, LIBRARY_BYTES);
            changed.push(b'/');
            changed.resize(changed.len() + LIBRARY_BYTES - 1, b'x');
            changed.extend_from_slice(rest);
            return Some(changed);
        }
    }
    None
}

/// A string of a header block.
struct Text<'a> {
    bytes: &'a [u8],
    is_compressed: bool,
}

impl Text<'_> {
    fn is(&self, text: &[u8]) -> bool {
        if self.is_compressed {
            // The code of `:path`, the only name that is asked for.
            self.bytes == [0xb9, 0x58, 0xd3, 0x3f]
        } else {
            self.bytes == text
        }
    }

    fn length(&self) -> usize {
        if self.is_compressed {
            decompressed_length(self.bytes)
        } else {
            self.bytes.len()
        }
    }
}

fn string<'a>(rest: &mut &'a [u8]) -> Option<Text<'a>> {
    let is_compressed = rest.first()? & 0x80 != 0;
    let length = integer(rest, 7)?;
    let (bytes, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(Text { bytes, is_compressed })
}

/// An integer whose first byte has `prefix` bits of it.
fn integer(rest: &mut &[u8], prefix: u32) -> Option<usize> {
    let most = (1_usize << prefix) - 1;
    let (first, mut after) = rest.split_first()?;
    let mut value = usize::from(*first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (byte, next) = after.split_first()?;
            after = next;
            value = value.checked_add(usize::from(byte & 0x7f) << shift)?;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
            if shift > 28 {
                return None;
            }
        }
    }
    *rest = after;
    Some(value)
}

/// Appends the length of an uncompressed string; at least 127.
fn write_length(block: &mut Vec<u8>, length: usize) {
    block.push(0x7f);
    let mut left = length - 0x7f;
    loop {
        let [.., low] = (left & 0x7f).to_be_bytes();
        left >>= 7;
        block.push(if left == 0 { low } else { low | 0x80 });
        if left == 0 {
            return;
        }
    }
}

/// How many codes of the static Huffman code have 1, 2, 3 … bits. The code is canonical, so this decides where a symbol ends.
const CODES: [u32; 30] = [
    0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4,
];

fn decompressed_length(bytes: &[u8]) -> usize {
    let (mut symbols, mut code, mut first, mut bits) = (0, 0_u32, 0_u32, 0);
    for byte in bytes {
        for at in (0..8).rev() {
            code = code << 1 | u32::from(byte >> at & 1);
            let Some(count) = CODES.get(bits) else {
                return symbols;
            };
            bits += 1;
            first <<= 1;
            match code.checked_sub(first) {
                Some(offset) if offset < *count => {
                    symbols += 1;
                    (code, first, bits) = (0, 0, 0);
                }
                _ => first += count,
            }
        }
    }
    symbols
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes bytes in pieces of a size.
    fn passed(bytes: &[u8], piece: usize) -> Vec<u8> {
        let (mut shortener, mut output) = (Shortener::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            shortener.pass(piece, &mut output);
        }
        output
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn block(prefix: &[u8], target: usize) -> Vec<u8> {
        let mut block = prefix.to_vec();
        write_length(&mut block, target);
        block.resize(block.len() + target, b'y');
        // A field after it: `:scheme https`.
        block.push(0x87);
        block
    }

    fn connection(block: &[u8]) -> Vec<u8> {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let (start, end) = block.split_at(block.len().min(16_000));
        let mut bytes = [&preface[..], &frame(4, 0, &[]), &frame(1, 1, start)].concat();
        bytes.extend(frame(9, 4, end));
        bytes.extend(frame(6, 0, &[0; 8]));
        bytes
    }

    #[test]
    fn targets_that_the_library_can_represent_pass_unchanged() {
        for target in [127, 20_000, LIBRARY_BYTES] {
            for prefix in [
                &[0x04][..],
                &[0x44],
                &[0x15],
                &[0, 5, b':', b'p', b'a', b't', b'h'],
            ] {
                let bytes = connection(&block(prefix, target));
                for piece in [1, 7, 5000, bytes.len()] {
                    assert_eq!(passed(&bytes, piece), bytes);
                }
            }
        }
    }

    #[test]
    fn longer_targets_are_replaced_by_one_that_is_refused() {
        for prefix in [
            &[0x04][..],
            &[0x82, 0x3f, 0, 0x44],
            &[0, 5, b':', b'p', b'a', b't', b'h'],
        ] {
            let bytes = connection(&block(prefix, LIBRARY_BYTES + 1));
            let output = passed(&bytes, 1000);
            assert_eq!(output, passed(&bytes, 1));
            let target: usize = output.iter().map(|byte| usize::from(*byte == b'x')).sum();
            assert_eq!(target, LIBRARY_BYTES - 1);
            assert!(!output.contains(&b'y'));
            // What follows is intact.
            assert!(output.ends_with(&frame(6, 0, &[0; 8])));
        }
    }

    #[test]
    fn compressed_targets_are_measured_as_they_are_decompressed() {
        // Eight times the letter `a`, which has five bits.
        let letters = [0x18, 0xc6, 0x31, 0x8c, 0x63];
        for (eights, is_long) in [(LIBRARY_BYTES / 8, false), (LIBRARY_BYTES / 8 + 1, true)] {
            let mut block = vec![0x04];
            write_length(&mut block, eights * letters.len());
            block[1] |= 0x80;
            block.extend(letters.repeat(eights));
            let bytes = connection(&block);
            assert_eq!(passed(&bytes, 1000) != bytes, is_long);
        }
    }

    #[test]
    fn other_long_fields_and_broken_frames_pass_unchanged() {
        let other = connection(&block(&[0x0f, 0x10], 70_000));
        assert_eq!(passed(&other, 100), other);
        let mut broken = connection(&block(&[0x04], 70_000));
        // A frame that does not belong into a header block.
        broken.splice(24 + 9 + 9 + 16_000.., frame(0, 0, b"data"));
        assert_eq!(passed(&broken, 100), broken);
        let endless = [connection(&[])[..33].to_vec(), frame(1, 0, &[0; 16_000])].concat();
        let endless = [endless, frame(9, 0, &[0; 16_000]).repeat(200)].concat();
        assert_eq!(passed(&endless, 4096), endless);
    }

    #[test]
    fn compressed_strings_are_measured() {
        // Examples of RFC 7541, appendix C.4, and one symbol of each length around the gaps of the code.
        for (bytes, length) in [
            (
                &[
                    0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
                ][..],
                15,
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], 8),
            (&[0xb9, 0x58, 0xd3, 0x3f], 5),
            (&[0xff, 0xcf], 1),
            (&[], 0),
        ] {
            assert_eq!(decompressed_length(bytes), length);
        }
        // `a` has five bits.
        assert_eq!(
            decompressed_length(&[0b0001_1000, 0b1100_0110, 0b0011_0001, 0b1000_1100, 0b0110_0011]),
            8
        );
    }
}
