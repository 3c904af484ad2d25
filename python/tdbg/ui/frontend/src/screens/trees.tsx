/** What the report shows of boosted trees: labels, importance, confusion, depth. */
import { type ComponentChildren, h } from "preact";
import { getJson } from "../api";
import { useAnswer } from "../hooks";
import { Card, Pending } from "../parts";
import type { Run } from "../types";

/** A text, or an element: its name, its attributes, and what is in it. */
type Node = string | [string, Record<string, string>, Node[]];

interface Section {
  title: string;
  content: Node[];
}

/** The elements that a report draws with; no other becomes part of the page. */
const KNOWN = new Set(
  (
    "b br caption circle code details div figcaption figure g h3 image li line p path rect span " +
    "summary svg table tbody td text th thead title tr ul"
  ).split(" "),
);
const HANDLER = /^(on|href$|src)/i;

/** A live training is drawn again when it has grown by this factor. */
const AGAIN = 1.1;

function made(node: Node, key: number): ComponentChildren {
  if (typeof node === "string") return node;
  const [name, attributes, inside] = node;
  if (!KNOWN.has(name)) return null;
  const kept = Object.entries(attributes).filter(
    ([attribute, value]) =>
      !HANDLER.test(attribute) || (name === "image" && value.startsWith("data:image/png;base64,")),
  );
  return h(name, { ...Object.fromEntries(kept), key }, inside.map(made));
}

export function Trees({ run }: { run: Run }) {
  const stage =
    run.state === "running" ? Math.floor(Math.log(run.steps + 1) / Math.log(AGAIN)) : -1;
  const key = `trees ${run.id} ${run.state} ${run.attempts} ${stage}`;
  const { data, error } = useAnswer<{ sections: Section[] }>(key, 0, (signal) =>
    getJson("trees", { run: run.id }, signal),
  );
  if (!data)
    return (
      <Card title="Trees">
        <div class="empty">
          <Pending error={error} />
        </div>
      </Card>
    );
  return (
    <div class="drawn-all">
      {data.sections.map(({ title, content }) => (
        <Card key={title} title={title} class="drawn">
          {content.map(made)}
        </Card>
      ))}
    </div>
  );
}
