/**
 * Names as a tree cut at dots: what has no room of its own is folded into the row of its branch.
 *
 * Branches stand where their first tensor does, in the order in which the names are given.
 */
export interface Row {
  /** Numbers of the names that share the row. */
  members: number[];
  /** The branch that is folded into this row; of a single name undefined. */
  branch?: string;
  /** The innermost unfolded branch that the row is in; at the top undefined. */
  inside?: string;
}

interface Node {
  path: string;
  members: number[];
  children: Map<string, Node>;
}

function treeOf(names: string[]): Node {
  const root: Node = { path: "", members: [], children: new Map() };
  names.forEach((name, i) => {
    let node = root;
    let path = "";
    for (const part of name.split(".")) {
      path = path ? `${path}.${part}` : part;
      let next = node.children.get(part);
      if (!next) {
        next = { path, members: [], children: new Map() };
        node.children.set(part, next);
      }
      next.members.push(i);
      node = next;
    }
  });
  return root;
}

function rowsTo(depth: number, root: Node, toggled: Set<string>): Row[] {
  const rows: Row[] = [];
  const add = (node: Node, level: number, inside: string | undefined) => {
    // Where there is nothing to choose from, there is no level.
    while (node.members.length > 1 && node.children.size === 1)
      node = node.children.values().next().value!;
    if (node.members.length === 1 || !node.children.size)
      rows.push({ members: node.members, inside });
    else if (level < depth !== toggled.has(node.path))
      for (const child of node.children.values()) add(child, level + 1, node.path);
    else rows.push({ members: node.members, branch: node.path, inside });
  };
  for (const child of root.children.values()) add(child, root.children.size > 1 ? 1 : 0, undefined);
  return rows;
}

/**
 * Rows for names: as many levels unfolded as there is room for, and what somebody toggled.
 *
 * @param most So many rows have room; Infinity unfolds everything.
 */
export function treeRows(names: string[], most: number, toggled: Set<string>): Row[] {
  const root = treeOf(names);
  const none = new Set<string>();
  let depth = 1;
  for (let before = 0; ; depth++) {
    const n = rowsTo(depth + 1, root, none).length;
    if (n > most || n === before) break;
    before = n;
  }
  return rowsTo(depth, root, toggled);
}
