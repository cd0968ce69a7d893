// the usual stack: client, tenant, everyone; all instances near (0.25 ms), saturated equally
import {simulate} from './build/test/instances/simulator.js'
const L=(name,r)=>({name,rate:r/1000,capacity:Math.max(20,4*r)})
for(const [a,b,c] of [[7,5,10],[5,6,5],[10,5,20],[20,10,20],[70,50,100]]) for(const n of [1,2,3,4,6]){
 const depth=10
 const sim=await simulate({stack:[L('client',a),L('tenant',b),L('all',c)],count:n,sources:Array.from({length:n},(_,i)=>({instance:i,keys:['c'+i,'t','all'],load:{kind:'saturated',depth}}))})
 const T=30000;await sim.run(T)
 const most=Math.min(n*a,b,c)*T/1000
 const by=Array.from({length:n},(_,i)=>sim.releases.filter(r=>r.source.instance===i).map(r=>r.at))
 const gap=by.map(x=>Math.max(...[...x,T].map((y,k)=>y-(k?x[k-1]:0))))
 console.log(`${a}+${b}+${c}/s n ${n}: ${sim.releases.length} of ${most} = ${(100*sim.releases.length/most).toFixed(0)} %, by instance ${by.map(x=>x.length)}, longest gap ms ${gap.map(g=>g.toFixed(0))}, waiting ${Array.from({length:n},(_,i)=>sim.waitingOf(i))}`)
}
