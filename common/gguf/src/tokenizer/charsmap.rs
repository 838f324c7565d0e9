//! Check of a SentencePiece vocabulary's normalization table: llama.cpp, which normalizes texts with it, throws an
//! exception if it has to read beyond the table's end.
//!
//! The check visits every node that some text can reach, and requires that every step from it stays inside the table.

use crate::check::Header;

const KEY: &str = "tokenizer.ggml.precompiled_charsmap";

/// A node of the table: the base of its children, the byte that leads to it, and whether a replacement ends there.
///
/// Source: llama.cpp's `xcda_array_view`.
#[derive(Clone, Copy)]
struct Node(u32);

impl Node {
    fn base(self) -> usize {
        ((self.0 >> 10) << ((self.0 & (1 << 9)) >> 6)) as usize
    }

    fn is_child_by(self, byte: u8) -> bool {
        self.0 & ((1 << 31) | 0xFF) == u32::from(byte)
    }

    fn is_leaf(self) -> bool {
        (self.0 >> 8) & 1 == 1
    }

    fn value(self) -> usize {
        (self.0 & ((1 << 31) - 1)) as usize
    }
}

/// Checks the table of a header. Errors: a description of how some text would make llama.cpp read beyond the table.
pub(crate) fn check(header: &Header) -> Result<(), String> {
    let Some(table) = header.context.raw_bytes(KEY) else { return Ok(()) };
    let size = table.first_chunk().map(|size| u32::from_le_bytes(*size) as usize);
    let Some((nodes, replacements)) = size.and_then(|size| table[4..].split_at_checked(size)) else {
        return Err(format!("{KEY} is shorter than its header declares"));
    };
    let nodes: Vec<Node> =
        nodes.chunks_exact(4).map(|node| Node(u32::from_le_bytes([node[0], node[1], node[2], node[3]]))).collect();
    // Every replacement must have an end.
    if replacements.last() != Some(&0) {
        return Err(format!("{KEY} ends in the middle of a replacement"));
    }
    let Some(root) = nodes.first() else { return Ok(()) };
    let outside = || format!("{KEY} refers to positions beyond its end");
    let mut is_seen = vec![false; nodes.len()];
    let mut unseen = vec![root.base()];
    while let Some(children) = unseen.pop() {
        for byte in 1..=u8::MAX {
            let place = children ^ usize::from(byte);
            let node = *nodes.get(place).ok_or_else(outside)?;
            if !node.is_child_by(byte) || std::mem::replace(&mut is_seen[place], true) {
                continue;
            }
            let next = place ^ node.base();
            if node.is_leaf() && nodes.get(next).ok_or_else(outside)?.value() >= replacements.len() {
                return Err(outside());
            }
            unseen.push(next);
        }
    }
    Ok(())
}
