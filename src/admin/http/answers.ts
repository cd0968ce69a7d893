/** Answers of the admin server. */
import type { ServerResponse } from 'node:http'

export const PLAIN = { 'Cache-Control': 'no-store', 'X-Content-Type-Options': 'nosniff' }

export function sendText(res: ServerResponse, status: number, body: string): void {
  res.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8', ...PLAIN }).end(body)
}

export function sendJson(res: ServerResponse, status: number, value: unknown, type = 'application/json'): void {
  res.writeHead(status, { 'Content-Type': type, ...PLAIN }).end(`${JSON.stringify(value)}\n`)
}

export function sendProblem(
  res: ServerResponse,
  status: number,
  detail: string,
  headers: Record<string, string> = {},
): void {
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value)
  sendJson(res, status, { type: 'about:blank', status, detail }, 'application/problem+json')
}
