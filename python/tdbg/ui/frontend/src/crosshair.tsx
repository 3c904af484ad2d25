/** One line across all charts of a screen, at the place that the pointer is at in one of them. */
import { useEffect, useRef } from "preact/hooks";

type Place = number | undefined;

const charts = new Set<(place: Place) => void>();

/** The pointer is at a place, or has left. */
export function point(place: Place): void {
  for (const show of charts) show(place);
}

export function Crosshair({
  from,
  to,
  left,
  width,
  read,
}: {
  from: number;
  to: number;
  /** Where places begin, in pixels, and how wide they are together. */
  left: number;
  width: number;
  /** What the chart has there. */
  read?: (place: number) => string;
}) {
  const line = useRef<HTMLDivElement>(null);
  const latest = useRef(read);
  latest.current = read;
  useEffect(() => {
    const show = (place: Place) => {
      if (!line.current) return;
      const { style, dataset, classList } = line.current;
      line.current.hidden = place === undefined || place < from || place >= to;
      if (place === undefined) return;
      const share = (place + 0.5 - from) / Math.max(1, to - from);
      style.left = `${left + share * width}px`;
      dataset.at = String(place);
      dataset.read = latest.current?.(place) ?? "";
      classList.toggle("leftward", share > 0.6);
    };
    charts.add(show);
    return () => {
      charts.delete(show);
    };
  }, [from, to, left, width]);
  return <div class="crosshair" ref={line} hidden />;
}
