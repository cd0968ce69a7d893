/** What instances leave for each other in PostgreSQL, in tables beside that of the buckets. */
import type { QueryResultRow } from 'pg'
import { type Board, MOST_OVERRIDES, type Override, VIEW_LIFE, type View, type ViewKind } from '../../sharing/board.js'
import type { SideConnection } from './link.js'
import type { Schema } from './schema.js'
import { ascii, encodeOverride, encodePostgresKept, short } from './wire.js'

export function createPostgresBoard(side: SideConnection, { fill }: Pick<Schema, 'fill'>): Board {
  // Answers a row if anything has changed.
  const tell = "SELECT pg_notify(@channel@, concat_ws(' ', $2::text, @now@, $3::text)) FROM changed"
  const sql = {
    begin: fill(
      'BEGIN; LOCK TABLE @overrides@ IN SHARE ROW EXCLUSIVE MODE; DELETE FROM @overrides@ WHERE ends <= @now@',
    ),
    set: fill(`WITH changed AS (
        INSERT INTO @overrides@ AS o (name, ends, text)
        SELECT $1, @now@ + $4::float8, $5 WHERE (SELECT count(*) FROM @overrides@ WHERE name <> $1) < ${MOST_OVERRIDES}
        ON CONFLICT (name) DO UPDATE SET ends = excluded.ends, text = excluded.text RETURNING 1
      ) ${tell}`),
    end: fill(`WITH changed AS (DELETE FROM @overrides@ WHERE name = $1 RETURNING 1) ${tell}`),
    agree: fill(`INSERT INTO @secrets@ AS s (name, text) VALUES ('tickets', $1)
      ON CONFLICT (name) DO UPDATE SET text = s.text RETURNING text`),
    say: fill('SELECT pg_notify(@channel@, $1)'),
    list: fill('SELECT text, ends - @now@ AS left FROM @overrides@ WHERE ends > @now@'),
  }
  const viewSql: Record<ViewKind, ViewSql> = { present: viewSqlOf('present', fill), hour: viewSqlOf('hour', fill) }

  function change(statement: string, override: Override, more: readonly unknown[] = []): Promise<boolean> {
    const { kind, rest } = encodeOverride(override)
    const name = short(ascii([override.bucket, override.key]))
    return side.run(async client => {
      try {
        await client.query(sql.begin)
        const { rows } = await client.query(statement, [name, kind, rest, ...more])
        await client.query('COMMIT')
        return rows.length > 0
      } catch (error) {
        await client.query('ROLLBACK').catch(() => {})
        throw error
      }
    })
  }

  return {
    setOverride(override) {
      const { endsIn, ...rest } = override
      return change(sql.set, override, [endsIn, ascii(rest)])
    },

    endOverride: (bucket, key) => change(sql.end, { bucket, key, endsIn: 0 }),

    async overrides() {
      const rows = await side.query<{ text: string; left: number }>(sql.list)
      return rows.map(({ text, left }): Override => ({ ...JSON.parse(text), endsIn: left }))
    },

    async show(kind, id, text) {
      await side.query(viewSql[kind].forget, [id])
      // PostgreSQL keeps no text with this character. JSON has none.
      await side.query(viewSql[kind].show, [id, text.replaceAll('\0', '')])
    },

    views: kind => side.query<View & QueryResultRow>(viewSql[kind].views),

    async tell(news) {
      await side.query(sql.say, [encodePostgresKept(news)])
    },

    async agreeOnSecret(proposed) {
      const [kept] = await side.query<{ text: string }>(sql.agree, [proposed])
      return kept!.text
    },
  }
}

interface ViewSql {
  readonly forget: string
  readonly show: string
  readonly views: string
}

function viewSqlOf(kind: ViewKind, fill: Schema['fill']): ViewSql {
  const [table, life] = [{ present: '@views@', hour: '@hours@' }[kind], VIEW_LIFE[kind]]
  return {
    // One that another instance deletes at this moment is left to it.
    forget: fill(`DELETE FROM ${table} WHERE id IN
      (SELECT id FROM ${table} WHERE at <= @now@ - ${life} AND id <> $1 FOR UPDATE SKIP LOCKED)`),
    show: fill(`INSERT INTO ${table} AS v (id, at, text) VALUES ($1, @now@, $2)
      ON CONFLICT (id) DO UPDATE SET at = excluded.at, text = excluded.text`),
    views: fill(`SELECT id, text, @now@ - at AS age FROM ${table} WHERE at > @now@ - ${life}`),
  }
}
