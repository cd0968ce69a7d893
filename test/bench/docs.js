#!/usr/bin/env node
// @ts-check
/** Writes the tables of a run into docs/benchmarks.md: `node test/bench/docs.js FILE`. FILE is written by --json. */
import { readFileSync, writeFileSync } from 'node:fs'
import { reportMarkdown } from './tables.js'

const page = new URL('../../docs/benchmarks.md', import.meta.url)
const [begin, end] = ['<!-- run:begin -->', '<!-- run:end -->']

const [file] = process.argv.slice(2)
if (file === undefined) {
  console.error('node test/bench/docs.js FILE')
  process.exit(2)
}
const text = readFileSync(page, 'utf8')
const from = text.indexOf(begin)
const to = text.indexOf(end)
if (from < 0 || to < from) throw new Error(`${page.pathname} has no ${begin} ... ${end}`)
const tables = reportMarkdown(JSON.parse(readFileSync(file, 'utf8')))
writeFileSync(page, `${text.slice(0, from + begin.length)}\n\n${tables}\n\n${text.slice(to)}`)
