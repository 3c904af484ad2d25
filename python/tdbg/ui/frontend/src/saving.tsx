/** Charts that can be saved as files: what they have drawn, and the button that asks for it. */
import type { Line } from "./line_chart";

/** What a chart has drawn, for files. */
export type Drawing = { title: string } & (
  | {
      kind: "lines";
      lines: Line[];
      from: number;
      to: number;
      log: boolean;
      /** How a place on the axis is called. */
      place: (place: number) => string;
      /** Other numbers than those of the lines. */
      table?: () => Cell[][];
    }
  | { kind: "canvas"; canvas: HTMLCanvasElement; table: () => Cell[][] }
  | { kind: "svg"; svg: SVGSVGElement; table: () => Cell[][] }
);
export type Cell = string | number | null;

/** Where a page saves charts: it sets this; a notebook does not, and has no buttons. */
export const saver: { open?: (drawing: Drawing) => void } = {};

/** The same of a chart that is drawn by hand, with the numbers that it was drawn from. */
export function SaveCanvas({
  title,
  canvas,
  table,
}: {
  title: string;
  canvas: { current: HTMLCanvasElement | null };
  table: () => Cell[][];
}) {
  const drawing = () =>
    canvas.current && { kind: "canvas" as const, title, canvas: canvas.current, table };
  return <SaveButton title={title} drawing={drawing} />;
}

export function SaveButton({ title, drawing }: { title: string; drawing: () => Drawing | null }) {
  if (!saver.open) return null;
  return (
    <button
      type="button"
      class="save"
      aria-label={`Save ${title} as CSV, PNG or SVG`}
      title="Save as CSV, PNG or SVG"
      onClick={() => {
        const found = drawing();
        if (found) saver.open?.(found);
      }}
    >
      <svg width="14" height="14" viewBox="0 0 16 16" aria-hidden="true">
        <path d="M8 2v8m-3.5-3L8 10.5 11.5 7M3 13.5h10" />
      </svg>
    </button>
  );
}
