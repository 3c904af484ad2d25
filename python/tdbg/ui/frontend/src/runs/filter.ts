/**
 * Expressions that choose runs: `lr<0.1 loss<0.5 state:running (tag:paper or not digits)`.
 *
 *   any  = all { "or" all }        all  = one { one }
 *   one  = ( "not" | "-" ) one | "(" any ")" | term
 *   term = word | column operator value        words and values may stand in quotes
 */
import type { ListedRun } from "../types";
import type { Column, Columns, Value } from "./columns";

export type Test = (run: ListedRun) => boolean;

/** What is wrong with an expression, and where. */
export class Misread extends Error {
  constructor(
    readonly at: number,
    readonly length: number,
    message: string,
  ) {
    super(message);
  }
}

interface Token {
  kind: "word" | "operator" | "open" | "close";
  text: string;
  at: number;
  length: number;
  isQuoted?: boolean;
}

const OPERATOR = /^(<=|>=|!=|=|<|>|:|~)/;
const QUOTED = /^"((?:[^"\\]|\\.)*)("?)/;
const WORD = /^[^\s()<>=!:~"]+|^!/;

/** The test that an expression is.  @throws Misread */
export function parse(text: string, columns: Columns): Test {
  const reader = new Reader(tokens(text), columns, text.length);
  return reader.whole();
}

function tokens(text: string): Token[] {
  const found: Token[] = [];
  let at = 0;
  const take = (kind: Token["kind"], length: number, word: string, isQuoted = false) => {
    found.push({ kind, text: word, at, length, isQuoted });
    at += length;
  };
  while (at < text.length) {
    const rest = text.slice(at);
    const operator = OPERATOR.exec(rest);
    const quoted = QUOTED.exec(rest);
    if (/^\s/.test(rest)) at++;
    else if (rest[0] === "(") take("open", 1, "(");
    else if (rest[0] === ")") take("close", 1, ")");
    else if (operator) take("operator", operator[0].length, operator[0]);
    else if (quoted) {
      if (!quoted[2]) throw new Misread(at, rest.length, "this quote is not closed");
      take("word", quoted[0].length, quoted[1].replace(/\\(.)/g, "$1"), true);
    } else {
      const word = WORD.exec(rest)![0];
      take("word", word.length, word);
    }
  }
  return found;
}

class Reader {
  private i = 0;

  constructor(
    private readonly all: Token[],
    private readonly columns: Columns,
    private readonly end: number,
  ) {}

  whole(): Test {
    if (!this.all.length) return () => true;
    const test = this.any();
    const rest = this.all[this.i];
    if (rest) throw new Misread(rest.at, rest.length, "this parenthesis was not opened");
    return test;
  }

  private any(): Test {
    const tests = [this.every()];
    while (this.isWord("or")) {
      this.i++;
      tests.push(this.every());
    }
    return (run) => tests.some((test) => test(run));
  }

  private every(): Test {
    const tests = [this.one()];
    for (;;) {
      const next = this.all[this.i];
      if (!next || next.kind === "close" || this.isWord("or")) break;
      if (this.isWord("and")) this.i++;
      tests.push(this.one());
    }
    return (run) => tests.every((test) => test(run));
  }

  private one(): Test {
    const token = this.all[this.i];
    if (!token) throw new Misread(this.end, 1, "something is missing here");
    if (token.kind === "operator")
      throw new Misread(token.at, token.length, "the name of a column is missing before this");
    if (token.kind === "close")
      throw new Misread(token.at, token.length, "something is missing before this");
    this.i++;
    if (token.kind === "open") return this.inner(token);
    if (!token.isQuoted && /^not$/i.test(token.text)) {
      const test = this.one();
      return (run) => !test(run);
    }
    if (!token.isQuoted && token.text.length > 1 && token.text[0] === "-") {
      const word = {
        ...token,
        text: token.text.slice(1),
        at: token.at + 1,
        length: token.length - 1,
      };
      const test = this.term(word);
      return (run) => !test(run);
    }
    return this.term(token);
  }

  private inner(open: Token): Test {
    const test = this.any();
    if (this.all[this.i]?.kind !== "close")
      throw new Misread(open.at, 1, "this parenthesis is not closed");
    this.i++;
    return test;
  }

  private term(word: Token): Test {
    const operator = this.all[this.i];
    if (operator?.kind !== "operator" || operator.at !== word.at + word.length)
      return named(word.text);
    this.i++;
    const value = this.all[this.i];
    if (value?.kind !== "word")
      throw new Misread(operator.at, operator.length, "a value is missing after this");
    this.i++;
    const special = SPECIAL[word.text.toLowerCase()];
    if (special && (operator.text === ":" || operator.text === "=")) return special(value);
    const column = this.columns.find(word.text);
    if (!column) throw new Misread(word.at, word.length, unknown(word.text, this.columns));
    return compared(column, operator, value);
  }

  private isWord(text: string): boolean {
    const token = this.all[this.i];
    return token?.kind === "word" && !token.isQuoted && token.text.toLowerCase() === text;
  }
}

/** A word alone is a part of a name or a tag. */
function named(text: string): Test {
  const part = text.toLowerCase();
  return (run) =>
    run.name.toLowerCase().includes(part) ||
    (run.tags ?? []).some((tag) => tag.toLowerCase().includes(part));
}

const KINDS: Record<string, Test> = {
  archived: (run) => !!run.archived,
  running: (run) => run.state === "running",
  sick: (run) => (run.counts?.error ?? 0) > 0 || run.state === "unreadable",
  healthy: isHealthy,
  tagged: (run) => !!run.tags?.length,
};

/** Nothing that a rule warns of, and alive or ended in order. */
export function isHealthy(run: ListedRun): boolean {
  const counts = run.counts;
  return !!counts && !counts.error && !counts.warning && run.state !== "dead";
}

/** What is no column, or is compared in a way of its own. */
const SPECIAL: Record<string, (value: Token) => Test> = {
  is: (value) => {
    const test = KINDS[value.text.toLowerCase()];
    if (test) return test;
    const known = Object.keys(KINDS).join(", ");
    throw new Misread(value.at, value.length, `a run is one of: ${known}`);
  },
  state: ({ text }) => {
    const words: Record<string, string> = { finished: "closed", killed: "dead" };
    const state = words[text.toLowerCase()] ?? text.toLowerCase();
    return (run) => !!run.state?.startsWith(state);
  },
  finding: (value) => {
    const severity = value.text.toLowerCase();
    if (!["error", "warning", "info"].includes(severity))
      throw new Misread(value.at, value.length, "a finding is an error, a warning or an info");
    return (run) => (run.counts?.[severity as "error"] ?? 0) > 0;
  },
  tag:
    ({ text }) =>
    (run) =>
      (run.tags ?? []).some((tag) => tag.toLowerCase() === text.toLowerCase()),
};

function compared(column: Column, operator: Token, value: Token): Test {
  if (operator.text === "~") {
    const pattern = regex(value);
    return (run) => pattern.test(column.text(run));
  }
  if (column.isNumber) return comparedNumber(column, operator.text, value);
  const wanted = value.text.toLowerCase();
  const test: Record<string, (text: string) => boolean> = {
    ":": (text) => text.includes(wanted),
    "=": (text) => text === wanted,
    "!=": (text) => text !== wanted,
  };
  const found = test[operator.text];
  if (!found)
    throw new Misread(
      operator.at,
      operator.length,
      `${column.label} is text: use : (contains), = , != or ~ (regular expression)`,
    );
  return (run) => found(column.text(run).toLowerCase());
}

function comparedNumber(column: Column, operator: string, value: Token): Test {
  if (/^nan$/i.test(value.text)) {
    const isNot = operator === "!=";
    return (run) => (column.of(run) === null) !== isNot;
  }
  const wanted = Number(value.text.replace(/%$/, ""));
  if (!value.text.trim() || Number.isNaN(wanted))
    throw new Misread(value.at, value.length, `${column.label} is a number, which this is not`);
  const isSame = (x: number) =>
    Math.abs(x - wanted) <= 1e-6 * Math.max(Math.abs(x), Math.abs(wanted));
  const tests: Record<string, (x: number) => boolean> = {
    "<": (x) => x < wanted,
    "<=": (x) => x <= wanted || isSame(x),
    ">": (x) => x > wanted,
    ">=": (x) => x >= wanted || isSame(x),
    "=": isSame,
    ":": isSame,
    "!=": (x) => !isSame(x),
  };
  const test = tests[operator];
  // A NaN is neither less nor more than anything.
  return (run) => {
    const found: Value = column.of(run);
    return typeof found === "number" && test(found);
  };
}

function regex(value: Token): RegExp {
  try {
    return new RegExp(value.text, "i");
  } catch {
    throw new Misread(value.at, value.length, "this is no regular expression");
  }
}

/** Says that there is no such column, and which one may be meant. */
function unknown(name: string, columns: Columns): string {
  const near = columns.names
    .map((each) => ({ each, distance: distance(name.toLowerCase(), each.toLowerCase()) }))
    .sort((a, b) => a.distance - b.distance)[0];
  const hint =
    near && near.distance <= Math.max(2, name.length / 3) ? `; did you mean ${near.each}?` : "";
  return `no run has a column ${name}${hint}`;
}

/** How many letters to change, add or leave out (Levenshtein). */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + Number(a[i - 1] !== b[j - 1]));
    row = next;
  }
  return row[b.length];
}
