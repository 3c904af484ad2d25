/** What the server says: the documents of python/tdbg/ui/documents.py. */

export type Tone = "starting" | "unjudged" | "ok" | "info" | "warning" | "error";
export type Severity = "info" | "warning" | "error";

export interface Verdict {
  tone: Tone;
  sentence: string;
  /** The sentence without the length of the training. */
  short: string;
  /** Problems that are there now, what follows from them left out. */
  wrong: number;
}

export interface Judging {
  state: string;
  reason: string;
  steps: number;
}

export interface Spark {
  name: string;
  low: (number | null)[];
  high: (number | null)[];
  mean: (number | null)[];
  bad: number[];
}

/** What is said of a run in short, and at length. */
export interface Head {
  id: string;
  name: string;
  state: string;
  /** Training steps from the first recorded one to the last, without evaluation. */
  steps: number;
  /** Steps of evaluation and prediction. */
  evaluated: number;
  step_word: "step" | "round";
  /** The steps in words: of training, or else of evaluation. */
  counted_steps: string;
  recorded: number;
  /** Training steps: evaluation stands at the number of training steps before it. */
  first_step: number | null;
  last_step: number | null;
  /** The place after its last step, on each axis that runs are compared on. */
  ends: Record<"step" | "global" | "time" | "wall", number>;
  starts: Record<"step" | "global" | "time" | "wall", number>;
  wall: number | null;
  rate: number | null;
  cost: { share: number; is_telling: boolean };
  /** How much was recorded, and what to do to record more. */
  coverage: {
    text: string;
    advice: string;
    steps: number;
    roles: { role: string; steps: number; interval: number | null }[];
  };
  created: string;
  stopped: string | null;
  damaged_files: number;
  /** What was not recorded, by tensor and reason; empty: nothing is missing. */
  lost_records: { records: number; in_order: boolean; text: string };
  bytes: number;
  verdict: Verdict;
  counts: Record<Severity, number>;
  /** The last loss of training, as every face of tdbg says it. */
  last_loss: { name: string; mode_step: number; value: number | null; text: string } | null;
}

/** A run that the server has not read yet has a name and a time, and no status. */
export interface ListedRun extends Head {
  error?: string;
  /** How far the server is with judging it. */
  judging: Judging | null;
  /** Whether it is in a store. */
  is_far: boolean;
  loss: Spark | null;
  /** It comes with the verdict. */
  record?: RunRecord;
  /** What somebody said about it, and why that cannot be read. */
  tags: string[];
  note: string;
  archived: boolean;
  unsaid?: string;
}

/** Words, a number, or the least and the greatest of one that changes. */
export type Setting = string | number | [number, number];

/** Settings of a run, and its losses and metrics: null is a value that is not finite. */
export interface RunRecord {
  last: Record<string, number | null>;
  best: Record<string, number | null>;
  settings: Record<string, Setting>;
}

/** Rows of runs; what is common to their settings stands there once. */
export interface RunRows {
  common: Record<string, Setting>;
  runs: ListedRun[];
}

export interface RunList extends RunRows {
  /** As rings have it. */
  listing: string;
  places: string[];
  /** Why some of these cannot be listed now. */
  troubles: string[];
  may_control: boolean;
}

export interface Finding {
  rule: string;
  severity: Severity;
  tensor: string;
  message: string;
  advice: string;
  mode: string;
  step: number;
  noticed: number;
  first_step: number;
  last_step: number;
  value: number | null;
  threshold: number | null;
  over: boolean;
  consequences: number;
  /** Whether it is about time, and not about a tensor. */
  of_time: boolean;
  evidence: { statistic: string; limit: number | null } | null;
  cause: { rule: string; tensor: string; first_step: number } | null;
}

export interface Change {
  step: number;
  state: string;
  request: string;
  reason: string;
  until: number | null;
}

export interface Run extends Head {
  version: number;
  may_control: boolean;
  path: string;
  /** The server's clock, in seconds. */
  now: number;
  judging: Judging | null;
  findings: Finding[];
  n_findings: number;
  rules: Record<string, { status: string; message: string; applies: boolean }>;
  workers: Record<string, string>;
  attempts: number;
  modes: string[];
  curves: string[];
  problem_list: { kind: string; file: string; message: string }[];
  n_tensors: number;
  changes: Change[];
}

export interface Tensor {
  name: string;
  role: string;
  dtype: string;
  shape: number[] | null;
  module: string | null;
}

export type Field = "rms" | "l2" | "abs_max" | "std" | "mean" | "zero_share";
/** What is known of ranks: statistics of a tensor, and how long steps took. */
export type RankField = Field | "seconds";

export interface Row {
  /** The training step; of evaluation, the number of training steps before it. */
  step: number;
  mode: string | null;
  mode_step: number | null;
  global_step: number;
  [statistic: string]: number | string | null;
}

export interface Lost {
  dtype: string;
  [share: string]: number | string;
}
